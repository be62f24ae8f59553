/* What the kernel and we say to each other by netlink. Pure.
 *
 * The structures are the kernel's (linux/netlink.h, linux/rtnetlink.h, linux/fib_rules.h of its sources), which a
 * musl tool chain does not bring.
 */
#ifndef NETLINK_MESSAGE_H
#define NETLINK_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dhcp_message.h"

enum { NETLINK_MAX_REQUEST = 128, NETLINK_LINKS = 1 /* multicast group of interfaces */, NETLINK_MAIN_TABLE = 254 };

struct netlink_attribute {
    uint16_t length;
    uint16_t type;
};

/* The value of the first attribute of `type` in `data`, or NULL. */
const uint8_t *netlink_find(const uint8_t *data, size_t size, uint16_t type, size_t *length);

enum link_kind { LINK_NONE, LINK_THERE, LINK_GONE, LINK_REFUSED };

/* One message: of an interface that the kernel has named eth1, eth2 … that it is there or gone, or the refusal of
 * something that was asked for. */
struct link_event {
    enum link_kind kind;
    int index;
    char name[16];
    uint8_t mac[6];
    int error; /* of a refusal */
};

/* The message at `*at`, which moves past it; LINK_NONE for all that is of no use. False at the end. */
bool netlink_next(const uint8_t *data, size_t size, size_t *at, struct link_event *event);

/* Requests; `out` has room for NETLINK_MAX_REQUEST bytes. All interfaces: */
size_t netlink_ask_links(uint8_t *out);

/* Adds or deletes: what is sent from `source` is routed by `table`. */
size_t netlink_put_rule(bool add, uint32_t source, uint32_t table, uint8_t *out);

/* Adds or deletes a route of `table`, by the interface `index` and from `source`. */
size_t netlink_put_route(bool add, struct route route, uint32_t source, int index, uint32_t table, uint8_t *out);

#endif
