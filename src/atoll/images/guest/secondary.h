/* The interfaces after the first, eth1, eth2 …: each has a lease of its own, and nobody waits for it. */
#ifndef SECONDARY_H
#define SECONDARY_H

#include <stdbool.h>
#include <stdint.h>

#include "network.h"

enum { SECONDARY_NICS = 7 };

/* Follows the interfaces from now on, those that are there and those that come or go. `ours`: whether we may
 * configure them. Started already is fine. */
void secondary_start(bool ours);

/* Gives all of them up. */
void secondary_stop(void);

/* The interface in a place below SECONDARY_NICS, or NULL. */
const struct nic *secondary_at(int place);

#endif
