/* The DHCP client (RFC 2131). Effects: packets on the link; tells whoever uses the lease.
 *
 *                 offer               ack                T1              T2               expiry
 *   SELECTING ------------> REQUESTING ---> BOUND -----------> RENEWING ----> REBINDING ---------+
 *       ^                     |  nak or      ^  ack               |              |               |
 *       |                     |  no answer   +--------------------+--------------+               |
 *       +---------------------+------------------------------------------ nak ---+---------------+
 */
#include "dhcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"

#ifndef GRND_INSECURE
#define GRND_INSECURE 4
#endif

enum { FIRST_RETRY_MS = 50, LAST_RETRY_MS = 4000, REQUESTS_PER_OFFER = 5, RENEWAL_RETRY_MS = 60 * 1000 };

static void on_timer(void *context);
static void on_packet(void *context, short events);

static const char *dotted(uint32_t address)
{
    struct in_addr in = {address};

    return inet_ntoa(in);
}

static void use_socket(struct dhcp *client, int fd, const char *kind)
{
    loop_close(client->fd);
    client->fd = fd;
    if (fd < 0)
        say("dhcp: opening a %s socket: %s", kind, strerror(errno));
    else
        loop_watch(fd, POLLIN, on_packet, client);
}

/* Without an address only a packet socket can talk. It is open during the exchange alone, because it would
 * wake us for every packet of every connection. */
static void use_packet_socket(struct dhcp *client)
{
    int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_ll here = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = client->nic.index};

    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here)) {
        close(fd);
        fd = -1;
    }
    use_socket(client, fd, "packet");
}

static void use_udp_socket(struct dhcp *client)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(DHCP_CLIENT_PORT)};
    const int yes = 1;

    if (fd >= 0
        && (setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes)
            || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, client->nic.name, sizeof client->nic.name)
            || bind(fd, (struct sockaddr *)&here, sizeof here))) {
        close(fd);
        fd = -1;
    }
    use_socket(client, fd, "UDP");
}

static bool has_address(const struct dhcp *client)
{
    return client->state == RENEWING || client->state == REBINDING;
}

static ssize_t send_packet(const struct dhcp *client, const uint8_t *message, size_t length)
{
    uint8_t packet[DHCP_MAX_FRAME];
    size_t size = dhcp_frame(message, length, packet);
    struct sockaddr_ll to = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_IP),
        .sll_ifindex = client->nic.index,
        .sll_halen = 6,
        .sll_addr = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
    };

    return sendto(client->fd, packet, size, 0, (struct sockaddr *)&to, sizeof to);
}

static ssize_t send_datagram(const struct dhcp *client, const uint8_t *message, size_t length)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(DHCP_SERVER_PORT),
        .sin_addr.s_addr = INADDR_BROADCAST,
    };

    if (client->state == RENEWING && client->lease.server)
        to.sin_addr.s_addr = client->lease.server;
    return sendto(client->fd, message, length, 0, (struct sockaddr *)&to, sizeof to);
}

static void send_query(struct dhcp *client)
{
    uint8_t message[DHCP_MAX_MESSAGE];
    uint64_t seconds = (now_ms() - client->began_ms) / 1000;
    struct dhcp_query query = {
        .type = client->state == SELECTING ? DHCP_DISCOVER : DHCP_REQUEST,
        .xid = client->xid,
        .seconds = (uint16_t)(seconds < UINT16_MAX ? seconds : UINT16_MAX),
    };

    memcpy(query.mac, client->nic.mac, 6);
    if (has_address(client))
        query.own_address = client->lease.address;
    if (client->state == REQUESTING) {
        query.wanted_address = client->offer.address;
        query.server = client->offer.server;
    }
    size_t length = dhcp_build(&query, message);
    ssize_t sent =
        has_address(client) ? send_datagram(client, message, length) : send_packet(client, message, length);
    if (sent < 0)
        say("dhcp: sending: %s", strerror(errno));
}

static void new_exchange(struct dhcp *client)
{
    /* Not GRND_RANDOM: this must not wait for entropy, and needs only to differ from the neighbours'. */
    if (getrandom(&client->xid, sizeof client->xid, GRND_INSECURE) != sizeof client->xid)
        client->xid = (uint32_t)now_ms();
    client->began_ms = now_ms();
}

static void retry_later(struct dhcp *client)
{
    timer_start(&client->timer, client->retry_ms);
    client->retry_ms = client->retry_ms * 2 < LAST_RETRY_MS ? client->retry_ms * 2 : LAST_RETRY_MS;
}

static void discover(struct dhcp *client)
{
    client->state = SELECTING;
    send_query(client);
    retry_later(client);
}

static void begin_selecting(struct dhcp *client)
{
    client->retry_ms = FIRST_RETRY_MS;
    new_exchange(client);
    use_packet_socket(client);
    say("dhcp: discover on %s", client->nic.name);
    discover(client);
}

static void lose_address(struct dhcp *client, const char *why)
{
    struct lease before = client->lease;

    say("dhcp: %s is lost: %s", dotted(before.address), why);
    memset(&client->lease, 0, sizeof client->lease);
    client->use->lost(client, &before);
    begin_selecting(client);
}

static void request_offer(struct dhcp *client)
{
    client->state = REQUESTING;
    client->requests++;
    send_query(client);
    retry_later(client);
}

static void take_offer(struct dhcp *client, const struct lease *offer)
{
    client->offer = *offer;
    client->retry_ms = FIRST_RETRY_MS;
    client->requests = 0;
    request_offer(client);
}

static uint64_t left_ms(const struct dhcp *client, uint32_t after_s)
{
    uint64_t due = client->bound_ms + (uint64_t)after_s * 1000;
    uint64_t now = now_ms();

    return due > now ? due - now : 0;
}

static void take_lease(struct dhcp *client, const struct lease *lease)
{
    struct lease before = client->lease;
    struct lease after = *lease;

    client->state = BOUND;
    client->lease = after;
    client->bound_ms = now_ms();
    loop_close_later(client->fd);
    client->fd = -1;
    if (after.lifetime_s == DHCP_FOREVER)
        timer_stop(&client->timer);
    else
        timer_start(&client->timer, left_ms(client, after.renew_s));
    if (memcmp(&before, &after, sizeof after) == 0)
        return;
    if (before.address)
        client->use->lost(client, &before);
    client->use->bound(client, &client->lease);
    say("dhcp: bound to %s as %s on %s", dotted(after.address), after.host_name[0] ? after.host_name : "(no name)",
        client->nic.name);
}

/* Half of the time that is left, but not often (RFC 2131, 4.4.5), and never past `until_s`. */
static void ask_again(struct dhcp *client, uint32_t until_s)
{
    uint64_t left = left_ms(client, until_s);
    uint64_t wait = left / 2 > RENEWAL_RETRY_MS ? left / 2 : RENEWAL_RETRY_MS;

    send_query(client);
    timer_start(&client->timer, wait < left ? wait : left);
}

static void keep_lease(struct dhcp *client)
{
    if (left_ms(client, client->lease.lifetime_s) == 0) {
        lose_address(client, "the lease ran out");
        return;
    }
    if (client->state == BOUND) {
        new_exchange(client);
        use_udp_socket(client);
    }
    if (left_ms(client, client->lease.rebind_s) > 0) {
        client->state = RENEWING;
        ask_again(client, client->lease.rebind_s);
    } else {
        client->state = REBINDING;
        ask_again(client, client->lease.lifetime_s);
    }
}

static void on_timer(void *context)
{
    struct dhcp *client = context;

    if (client->state == SELECTING)
        discover(client);
    else if (client->state == REQUESTING && client->requests < REQUESTS_PER_OFFER)
        request_offer(client);
    else if (client->state == REQUESTING)
        begin_selecting(client);
    else
        keep_lease(client);
}

static void refuse(struct dhcp *client)
{
    if (has_address(client)) {
        lose_address(client, "the server refused it");
    } else if (client->state == REQUESTING) {
        say("dhcp: refused");
        client->state = SELECTING;
        /* Not at once: two servers that disagree must not make a storm. */
        retry_later(client);
    }
}

static void take_message(struct dhcp *client, const uint8_t *message, size_t length)
{
    struct lease lease;
    int type = dhcp_parse(message, length, client->xid, client->nic.mac, &lease);
    const struct lease *asked = has_address(client) ? &client->lease : &client->offer;

    if (!dhcp_answers(type, &lease, asked, client->state == REBINDING))
        return;
    if (type == DHCP_OFFER && client->state == SELECTING)
        take_offer(client, &lease);
    else if (type == DHCP_ACK && client->state != SELECTING)
        take_lease(client, &lease);
    else if (type == DHCP_NAK)
        refuse(client);
}

static void on_packet(void *context, short events)
{
    struct dhcp *client = context;
    uint8_t packet[DHCP_MAX_FRAME];
    struct sockaddr_storage from = {0};
    socklen_t room = sizeof from;

    (void)events;
    /* One at a time: an answer may change the socket that we listen to. */
    ssize_t size = recvfrom(client->fd, packet, sizeof packet, 0, (struct sockaddr *)&from, &room);
    if (size <= 0)
        return;
    if (has_address(client)) {
        if (((struct sockaddr_in *)&from)->sin_port == htons(DHCP_SERVER_PORT))
            take_message(client, packet, (size_t)size);
        return;
    }
    size_t length;
    const uint8_t *message = dhcp_unframe(packet, (size_t)size, &length);
    if (message)
        take_message(client, message, length);
}

void dhcp_start(struct dhcp *client, const struct nic *nic, const struct dhcp_use *use)
{
    *client = (struct dhcp){
        .nic = *nic, .use = use, .fd = -1, .timer = {.fire = on_timer, .context = client}};
    begin_selecting(client);
}

void dhcp_stop(struct dhcp *client)
{
    if (!client->use)
        return;
    timer_stop(&client->timer);
    loop_close(client->fd);
    if (client->lease.address)
        client->use->lost(client, &client->lease);
    *client = (struct dhcp){0};
}
