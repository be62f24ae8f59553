/* The DHCP client: gets an address and keeps it. */
#ifndef DHCP_H
#define DHCP_H

#include "dhcp_message.h"
#include "network.h"

/* `bound` is called with each lease that differs from the one before. Never gives up. */
void dhcp_start(const struct nic *nic, void (*bound)(const struct lease *lease));

/* Gives address and lease up without a word. */
void dhcp_stop(void);

#endif
