/* What the kernel and we say to each other by netlink. Pure: every length is checked here. */
#include "netlink_message.h"

#include <ctype.h>
#include <string.h>
#include <sys/socket.h>

enum { MESSAGE_ERROR = 2, NEW_LINK = 16, DEL_LINK = 17, GET_LINK = 18, NEW_ROUTE = 24, DEL_ROUTE = 25 };
enum { NEW_RULE = 32, DEL_RULE = 33 };
enum { REQUEST = 1, REPLACE = 0x100, DUMP = 0x300, CREATE = 0x400 };
enum { LINK_ADDRESS = 1, LINK_NAME = 3, ETHERNET = 1 };
enum { ROUTE_TO = 1, ROUTE_BY = 4, ROUTE_GATEWAY = 5, ROUTE_SOURCE = 7, ROUTE_TABLE = 15 };
enum { ON_LINK = 4, SCOPE_LINK = 253, UNICAST = 1, FROM_DHCP = 16 };
enum { RULE_SOURCE = 2, RULE_TABLE = 15, TO_TABLE = 1 };
enum { NESTED_TYPE = 0x3fff };

struct head {
    uint32_t length;
    uint16_t type;
    uint16_t flags;
    uint32_t sequence;
    uint32_t port;
};

struct link_head {
    uint8_t family;
    uint8_t pad;
    uint16_t type;
    int32_t index;
    uint32_t flags;
    uint32_t change;
};

/* Of routes and of rules; the latter have their action in the place of the type. */
struct route_head {
    uint8_t family;
    uint8_t to_bits;
    uint8_t from_bits;
    uint8_t service;
    uint8_t table;
    uint8_t protocol;
    uint8_t scope;
    uint8_t type;
    uint32_t flags;
};

static size_t aligned(size_t length)
{
    return (length + 3) & ~(size_t)3;
}

const uint8_t *netlink_find(const uint8_t *data, size_t size, uint16_t type, size_t *length)
{
    struct netlink_attribute head;

    while (size >= sizeof head) {
        memcpy(&head, data, sizeof head);
        if (head.length < sizeof head || head.length > size)
            return NULL;
        if ((head.type & NESTED_TYPE) == type) {
            *length = head.length - sizeof head;
            return data + sizeof head;
        }
        size_t step = aligned(head.length);
        if (step >= size)
            return NULL;
        data += step;
        size -= step;
    }
    return NULL;
}

/* As the kernel names Ethernet interfaces: eth and a number. The first one, eth0, is not of these. */
static bool is_secondary(const uint8_t *name, size_t length)
{
    if (length && name[length - 1] == 0)
        length--;
    if (length < 4 || length >= sizeof((struct link_event *)0)->name || memcmp(name, "eth", 3) || name[3] == '0')
        return false;
    for (size_t i = 3; i < length; i++) {
        if (!isdigit(name[i]))
            return false;
    }
    return true;
}

static void read_link(const uint8_t *data, size_t size, bool there, struct link_event *event)
{
    struct link_head head;
    size_t name_length = 0, mac_length = 0;

    if (size < sizeof head)
        return;
    memcpy(&head, data, sizeof head);
    /* A bridge tells of its ports with messages of another family. */
    if (head.family != AF_UNSPEC || head.type != ETHERNET || head.index <= 0)
        return;
    const uint8_t *name = netlink_find(data + sizeof head, size - sizeof head, LINK_NAME, &name_length);
    const uint8_t *mac = netlink_find(data + sizeof head, size - sizeof head, LINK_ADDRESS, &mac_length);
    if (!name || !is_secondary(name, name_length) || !mac || mac_length != sizeof event->mac)
        return;
    event->kind = there ? LINK_THERE : LINK_GONE;
    event->index = head.index;
    memcpy(event->name, name, name_length < sizeof event->name ? name_length : sizeof event->name - 1);
    memcpy(event->mac, mac, sizeof event->mac);
}

bool netlink_next(const uint8_t *data, size_t size, size_t *at, struct link_event *event)
{
    struct head head;

    memset(event, 0, sizeof *event);
    if (*at > size || size - *at < sizeof head)
        return false;
    memcpy(&head, data + *at, sizeof head);
    if (head.length < sizeof head || head.length > size - *at)
        return false;
    const uint8_t *body = data + *at + sizeof head;
    size_t length = head.length - sizeof head;
    *at += aligned(head.length);
    if (head.type == MESSAGE_ERROR && length >= sizeof event->error) {
        memcpy(&event->error, body, sizeof event->error);
        event->kind = event->error ? LINK_REFUSED : LINK_NONE;
    } else if (head.type == NEW_LINK || head.type == DEL_LINK) {
        read_link(body, length, head.type == NEW_LINK, event);
    }
    return true;
}

/* A request in the making. */
struct request {
    uint8_t *out;
    size_t length;
};

static struct request begin(uint8_t *out, const void *fixed, size_t size)
{
    memset(out, 0, NETLINK_MAX_REQUEST);
    memcpy(out + sizeof(struct head), fixed, size);
    return (struct request){out, sizeof(struct head) + size};
}

static void put(struct request *request, uint16_t type, uint32_t value)
{
    struct netlink_attribute head = {.length = sizeof head + sizeof value, .type = type};

    memcpy(request->out + request->length, &head, sizeof head);
    memcpy(request->out + request->length + sizeof head, &value, sizeof value);
    request->length += head.length;
}

static size_t end(struct request *request, uint16_t type, uint16_t flags)
{
    struct head head = {.length = (uint32_t)request->length, .type = type, .flags = REQUEST | flags};

    memcpy(request->out, &head, sizeof head);
    return request->length;
}

size_t netlink_ask_links(uint8_t *out)
{
    struct link_head links = {.family = AF_UNSPEC};
    struct request request = begin(out, &links, sizeof links);

    return end(&request, GET_LINK, DUMP);
}

size_t netlink_put_rule(bool add, uint32_t source, uint32_t table, uint8_t *out)
{
    struct route_head rule = {.family = AF_INET, .from_bits = 32, .type = TO_TABLE};
    struct request request = begin(out, &rule, sizeof rule);

    put(&request, RULE_SOURCE, source);
    put(&request, RULE_TABLE, table);
    return end(&request, add ? NEW_RULE : DEL_RULE, add ? CREATE : 0);
}

size_t netlink_put_route(bool add, struct route route, uint32_t source, int index, uint32_t table, uint8_t *out)
{
    struct route_head head = {
        .family = AF_INET,
        .to_bits = (uint8_t)__builtin_popcount(route.mask),
        .protocol = FROM_DHCP,
        .scope = route.gateway ? 0 : SCOPE_LINK,
        .type = UNICAST,
        .flags = route.gateway ? ON_LINK : 0,
    };
    struct request request = begin(out, &head, sizeof head);

    put(&request, ROUTE_TO, route.destination);
    if (route.gateway)
        put(&request, ROUTE_GATEWAY, route.gateway);
    put(&request, ROUTE_BY, (uint32_t)index);
    put(&request, ROUTE_SOURCE, source);
    put(&request, ROUTE_TABLE, table);
    return end(&request, add ? NEW_ROUTE : DEL_ROUTE, add ? CREATE | REPLACE : 0);
}
