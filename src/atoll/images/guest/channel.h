/* The private line between the host and a guest that waits for its identity. */
#ifndef CHANNEL_H
#define CHANNEL_H

#include <stdbool.h>

#include "channel_message.h"

/* Whether this guest was started to become a template: it says `atoll.wait` on the kernel's command line, and
 * the line is there. */
bool channel_open(void (*told)(enum order_kind kind, const struct order *order));

/* Tells the host that an order is waited for, or has been obeyed. */
void channel_ready(void);
void channel_taken(void);

/* No more orders: the guest is somebody now. */
void channel_close(void);

#endif
