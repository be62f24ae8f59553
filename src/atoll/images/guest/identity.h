/* Becoming another machine than the one that this memory was copied from. */
#ifndef IDENTITY_H
#define IDENTITY_H

#include <stdbool.h>

#include "channel_message.h"
#include "network.h"

/* Whether the kernel's random numbers can be made anew, which an identity needs first of all. */
bool identity_possible(void);

/* Entropy, clock, MAC and host name of the order; `nic` learns the MAC. False when the random numbers are still
 * those of the memory that this is a copy of: then nothing may come of it. */
bool identity_take(const struct order *order, struct nic *nic);

/* Writes /etc/machine-id: it follows from the instance's id, or is random when that is empty. */
void identity_write_machine_id(const char *instance_id, char machine_id[33]);

#endif
