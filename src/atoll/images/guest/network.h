/* The guest's network interfaces. What is said of *the* interface is said of the first one. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "dhcp_message.h"

#define INTERFACE "eth0"

struct nic {
    int index;
    uint8_t mac[6];
    char name[16];
};

void network_start_loopback(void);

/* Brings the interface up; false when it is not there (yet). */
bool network_start_nic(struct nic *nic);

/* Whether we may configure the interface. In some containers that is done from outside. */
bool network_is_ours(void);

/* What the interface was given from outside; false when that is not all there (yet). */
bool network_given(struct lease *lease);

/* IPv6 addresses are made of the MAC when the interface comes up: a guest that does not know its MAC yet has
 * none. Said before there is an interface, it holds for the one that comes. */
void network_allow_ipv6(bool allowed);

/* Gives the interface, which stays up, another MAC. */
bool network_set_mac(struct nic *nic, const uint8_t mac[6]);

/* Address, routes and MTU as the lease says; the rest follows soon. */
void network_apply(const struct nic *nic, const struct lease *lease);

/* The rest of a lease, now, if it has not been done: announces the address, writes resolver and host name. */
void network_settle(void);

/* Takes address and routes away. */
void network_clear(const struct nic *nic);

/* For interfaces after the first. Brings one up. */
bool network_bring_up(const struct nic *nic);

/* Address and MTU as the lease says, and no more: name, resolver and routes are the first one's. */
void network_apply_secondary(const struct nic *nic, const struct lease *lease);

/* The address that an interface has, or 0. */
uint32_t network_address(const struct nic *nic);

#endif
