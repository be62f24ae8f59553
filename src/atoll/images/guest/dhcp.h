/* The DHCP client: gets an address for one interface and keeps it. */
#ifndef DHCP_H
#define DHCP_H

#include "dhcp_message.h"
#include "loop.h"
#include "network.h"

struct dhcp;

/* What to do with a lease, and how to take back what was done with it before. */
struct dhcp_use {
    void (*bound)(struct dhcp *client, const struct lease *lease); /* each that differs from the one before */
    void (*lost)(struct dhcp *client, const struct lease *lease);
};

enum dhcp_state { SELECTING, REQUESTING, BOUND, RENEWING, REBINDING };

/* One interface's client. The caller provides the room; all in it is dhcp.c's, and the rest may read it. */
struct dhcp {
    enum dhcp_state state;
    struct nic nic;
    struct lease offer;
    struct lease lease; /* no address: there is none */
    uint32_t xid;
    uint64_t began_ms;
    uint64_t bound_ms;
    uint64_t retry_ms;
    int requests;
    int fd;
    struct timer timer;
    const struct dhcp_use *use;
};

/* Never gives up. A client that runs is to be stopped first. */
void dhcp_start(struct dhcp *client, const struct nic *nic, const struct dhcp_use *use);

/* Gives address and lease up without a word. A client that was never started, all zero, is left as it is. */
void dhcp_stop(struct dhcp *client);

#endif
