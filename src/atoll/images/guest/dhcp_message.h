/* DHCP messages as bytes, and what they say. Pure. Addresses are in network byte order. */
#ifndef DHCP_MESSAGE_H
#define DHCP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dhcp_type { DHCP_DISCOVER = 1, DHCP_OFFER = 2, DHCP_REQUEST = 3, DHCP_ACK = 5, DHCP_NAK = 6 };

enum {
    DHCP_SERVER_PORT = 67,
    DHCP_CLIENT_PORT = 68,
    DHCP_MAX_MESSAGE = 1472,
    DHCP_MAX_FRAME = 20 + 8 + DHCP_MAX_MESSAGE,
    DHCP_MAX_SERVERS = 3,
    DHCP_MAX_ROUTES = 16,
};

#define DHCP_FOREVER UINT32_MAX

struct route {
    uint32_t destination;
    uint32_t mask;
    uint32_t gateway; /* 0: on the link */
};

/* What a server gave us. Unused room is zero, so that two leases compare with memcmp. */
struct lease {
    uint32_t address;
    uint32_t mask;
    uint32_t server;
    uint32_t lifetime_s;
    uint32_t renew_s;
    uint32_t rebind_s;
    uint32_t dns[DHCP_MAX_SERVERS];
    uint32_t dns_count;
    struct route routes[DHCP_MAX_ROUTES];
    uint32_t route_count;
    uint32_t mtu; /* 0: not given */
    char host_name[64];
    char domain[254];
};

struct dhcp_query {
    enum dhcp_type type;
    uint32_t xid;
    uint8_t mac[6];
    uint16_t seconds;
    uint32_t own_address;     /* ciaddr: set when renewing or rebinding */
    uint32_t wanted_address;  /* option 50: set when answering an offer */
    uint32_t server;          /* option 54: set when answering an offer */
};

/* The message, without IP and UDP headers. `message` has room for DHCP_MAX_MESSAGE bytes. */
size_t dhcp_build(const struct dhcp_query *query, uint8_t *message);

/* The same as an IP packet from `source` to everyone, for a link that has no address yet. */
size_t dhcp_frame(const uint8_t *message, size_t length, uint8_t *packet);

/* The message inside an IP packet, or NULL when it is not one from a DHCP server for a client. */
const uint8_t *dhcp_unframe(const uint8_t *packet, size_t size, size_t *length);

/* The type of an answer to (xid, mac) and the lease in it, or 0 when it is none or malformed. */
int dhcp_parse(const uint8_t *message, size_t length, uint32_t xid, const uint8_t mac[6], struct lease *lease);

/* Whether an answer is one to what was asked: of the server that was asked, unless anybody was, and for the address
 * that was asked for. */
bool dhcp_answers(int type, const struct lease *answer, const struct lease *asked, bool by_anybody);

#endif
