/* Commands that the host runs in this guest, over a port of its own. */
#ifndef HANDS_H
#define HANDS_H

#include <sys/types.h>

/* Looks for the port, and again for a while if it is not there yet. Once all drivers are loaded; called again, it does
 * nothing. */
void hands_start(void);

/* The port may have something to say: SIGIO. */
void hands_stir(void);

void hands_child_ended(pid_t pid, int status);

#endif
