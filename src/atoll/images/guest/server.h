/* The guest's own page: http://<ip>/ says who it is. */
#ifndef SERVER_H
#define SERVER_H

#include "instance.h"

enum { SERVER_PORT = 80 };

/* Opens the port; whether it did. `instance` stays the caller's and is read anew for each answer. */
bool server_start(const struct instance *instance);

/* Closes the port and all that came through it. */
void server_stop(void);

#endif
