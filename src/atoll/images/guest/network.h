/* The guest's one network interface. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "dhcp_message.h"

#define INTERFACE "eth0"

struct nic {
    int index;
    uint8_t mac[6];
};

void network_start_loopback(void);

/* Brings the interface up; false when it is not there (yet). */
bool network_start_nic(struct nic *nic);

/* Address, routes, resolver, host name and MTU as the lease says; announces the address. */
void network_apply(const struct nic *nic, const struct lease *lease);

/* Takes address and routes away. */
void network_clear(void);

#endif
