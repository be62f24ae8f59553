/* The interfaces after the first. Effects: their links, addresses and routes; packets by dhcp.c.
 *
 * A lease here gives an address, and routes other than the default one. What is sent *from* the address leaves by
 * its interface, also where the first one has a route to the same place: that is a table of its own, which has
 * the lease's default route too.
 */
#include "secondary.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dhcp.h"
#include "log.h"
#include "loop.h"
#include "netlink_message.h"

enum { FIRST_TABLE = 1000, NETLINK_PROTOCOL_ROUTE = 0, BUFFER = 16 * 1024 };

/* struct sockaddr_nl of the kernel's sources. */
struct netlink_address {
    uint16_t family;
    uint16_t pad;
    uint32_t port;
    uint32_t groups;
};

static struct secondary {
    struct nic nic; /* index 0: the place is free */
    struct dhcp dhcp;
} places[SECONDARY_NICS];

static int kernel = -1;
static bool configure;

static void tell(const uint8_t *request, size_t length)
{
    if (send(kernel, request, length, 0) < 0)
        say("netlink: sending: %s", strerror(errno));
}

static void put_routes(bool add, const struct dhcp *client, const struct lease *lease)
{
    const int index = client->nic.index;
    const uint32_t source = lease->address, own_table = FIRST_TABLE + (uint32_t)index;
    const struct route network = {.destination = source & lease->mask, .mask = lease->mask};
    uint8_t request[NETLINK_MAX_REQUEST];

    tell(request, netlink_put_route(add, network, source, index, own_table, request));
    for (uint32_t i = 0; i < lease->route_count; i++) {
        const struct route *route = &lease->routes[i];

        tell(request, netlink_put_route(add, *route, source, index, own_table, request));
        if (route->mask)
            tell(request, netlink_put_route(add, *route, source, index, NETLINK_MAIN_TABLE, request));
    }
    tell(request, netlink_put_rule(add, source, own_table, request));
}

static void bound(struct dhcp *client, const struct lease *lease)
{
    network_apply_secondary(&client->nic, lease);
    put_routes(true, client, lease);
}

static void lost(struct dhcp *client, const struct lease *lease)
{
    put_routes(false, client, lease);
    network_clear(&client->nic);
}

static const struct dhcp_use USE = {bound, lost};

/* An interface answers for its own addresses only: two of them can be in the same network. */
static void keep_apart(void)
{
    static const char *const SETTINGS[][2] = {
        {"/proc/sys/net/ipv4/conf/all/arp_ignore", "1"},
        {"/proc/sys/net/ipv4/conf/all/arp_announce", "2"},
    };

    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        int fd = open(SETTINGS[i][0], O_WRONLY | O_CLOEXEC);

        /* A container may not be allowed to: then it is as it was made. */
        if (fd >= 0) {
            (void)!write(fd, SETTINGS[i][1], 1);
            close(fd);
        }
    }
}

static struct secondary *find(int index)
{
    for (struct secondary *place = places; place < places + SECONDARY_NICS; place++) {
        if (place->nic.index == index)
            return place;
    }
    return NULL;
}

static void drop(struct secondary *place)
{
    dhcp_stop(&place->dhcp);
    *place = (struct secondary){0};
}

static void take(const struct link_event *event)
{
    struct secondary *place = find(0);

    if (find(event->index))
        return;
    if (!place) {
        say("%s: more than %d interfaces", event->name, SECONDARY_NICS + 1);
        return;
    }
    place->nic.index = event->index;
    memcpy(place->nic.mac, event->mac, sizeof place->nic.mac);
    memcpy(place->nic.name, event->name, sizeof place->nic.name);
    /* One that has an address was given it from outside. */
    if (!configure || network_address(&place->nic))
        return;
    keep_apart();
    if (network_bring_up(&place->nic))
        dhcp_start(&place->dhcp, &place->nic, &USE);
    else
        say("bringing up %s: %s", place->nic.name, strerror(errno));
}

static void heed(const struct link_event *event)
{
    struct secondary *place;

    switch (event->kind) {
    case LINK_THERE:
        take(event);
        break;
    case LINK_GONE:
        place = find(event->index);
        if (place)
            drop(place);
        break;
    case LINK_REFUSED:
        /* What went with its interface cannot be deleted again. */
        if (event->error != -ESRCH && event->error != -ENOENT && event->error != -ENODEV)
            say("netlink: %s", strerror(-event->error));
        break;
    case LINK_NONE:
        break;
    }
}

static void ask(void)
{
    uint8_t request[NETLINK_MAX_REQUEST];

    tell(request, netlink_ask_links(request));
}

static void on_message(void *context, short events)
{
    static uint8_t data[BUFFER];
    struct link_event event;
    ssize_t got;

    (void)context;
    (void)events;
    while ((got = recv(kernel, data, sizeof data, 0)) > 0) {
        for (size_t at = 0; netlink_next(data, (size_t)got, &at, &event);)
            heed(&event);
    }
    /* More came than there was room for: look again at what is there. */
    if (got < 0 && errno == ENOBUFS)
        ask();
}

void secondary_start(bool ours)
{
    const struct netlink_address here = {.family = AF_NETLINK, .groups = NETLINK_LINKS};

    if (kernel >= 0)
        return;
    configure = ours;
    kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_PROTOCOL_ROUTE);
    if (kernel < 0 || bind(kernel, (const struct sockaddr *)&here, sizeof here)
        || !loop_watch(kernel, POLLIN, on_message, NULL)) {
        say("netlink: %s", strerror(errno));
        secondary_stop();
        return;
    }
    ask();
}

void secondary_stop(void)
{
    for (struct secondary *place = places; place < places + SECONDARY_NICS; place++)
        drop(place);
    loop_close(kernel);
    kernel = -1;
}

const struct nic *secondary_at(int place)
{
    return places[place].nic.index ? &places[place].nic : NULL;
}
