/* The DHCP client (RFC 2131). Effects: packets on the link, network_apply.
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

enum state { SELECTING, REQUESTING, BOUND, RENEWING, REBINDING };

static struct {
    enum state state;
    struct nic nic;
    struct lease offer;
    struct lease lease;
    uint32_t xid;
    uint64_t began_ms;
    uint64_t bound_ms;
    uint64_t retry_ms;
    int requests;
    int fd;
    struct timer timer;
    void (*bound)(const struct lease *lease);
} client = {.fd = -1};

static void on_timer(void *context);
static void on_packet(void *context, short events);

static const char *dotted(uint32_t address)
{
    struct in_addr in = {address};

    return inet_ntoa(in);
}

static void use_socket(int fd, const char *kind)
{
    loop_close(client.fd);
    client.fd = fd;
    if (fd < 0)
        say("dhcp: opening a %s socket: %s", kind, strerror(errno));
    else
        loop_watch(fd, POLLIN, on_packet, NULL);
}

/* Without an address only a packet socket can talk. It is open during the exchange alone, because it would
 * wake us for every packet of every connection. */
static void use_packet_socket(void)
{
    int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_ll here = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = client.nic.index};

    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here)) {
        close(fd);
        fd = -1;
    }
    use_socket(fd, "packet");
}

static void use_udp_socket(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(DHCP_CLIENT_PORT)};
    const int yes = 1;

    if (fd >= 0
        && (setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof yes)
            || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, INTERFACE, sizeof INTERFACE)
            || bind(fd, (struct sockaddr *)&here, sizeof here))) {
        close(fd);
        fd = -1;
    }
    use_socket(fd, "UDP");
}

static bool has_address(void)
{
    return client.state == RENEWING || client.state == REBINDING;
}

static ssize_t send_packet(const uint8_t *message, size_t length)
{
    uint8_t packet[DHCP_MAX_FRAME];
    size_t size = dhcp_frame(message, length, packet);
    struct sockaddr_ll to = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_IP),
        .sll_ifindex = client.nic.index,
        .sll_halen = 6,
        .sll_addr = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
    };

    return sendto(client.fd, packet, size, 0, (struct sockaddr *)&to, sizeof to);
}

static ssize_t send_datagram(const uint8_t *message, size_t length)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(DHCP_SERVER_PORT),
        .sin_addr.s_addr = client.state == RENEWING && client.lease.server ? client.lease.server : INADDR_BROADCAST,
    };

    return sendto(client.fd, message, length, 0, (struct sockaddr *)&to, sizeof to);
}

static void send_query(void)
{
    uint8_t message[DHCP_MAX_MESSAGE];
    uint64_t seconds = (now_ms() - client.began_ms) / 1000;
    struct dhcp_query query = {
        .type = client.state == SELECTING ? DHCP_DISCOVER : DHCP_REQUEST,
        .xid = client.xid,
        .seconds = (uint16_t)(seconds < UINT16_MAX ? seconds : UINT16_MAX),
    };

    memcpy(query.mac, client.nic.mac, 6);
    if (has_address())
        query.own_address = client.lease.address;
    if (client.state == REQUESTING) {
        query.wanted_address = client.offer.address;
        query.server = client.offer.server;
    }
    size_t length = dhcp_build(&query, message);
    ssize_t sent = has_address() ? send_datagram(message, length) : send_packet(message, length);
    if (sent < 0)
        say("dhcp: sending: %s", strerror(errno));
}

static void new_exchange(void)
{
    /* Not GRND_RANDOM: this must not wait for entropy, and needs only to differ from the neighbours'. */
    if (getrandom(&client.xid, sizeof client.xid, GRND_INSECURE) != sizeof client.xid)
        client.xid = (uint32_t)now_ms();
    client.began_ms = now_ms();
}

static void retry_later(void)
{
    timer_start(&client.timer, client.retry_ms);
    client.retry_ms = client.retry_ms * 2 < LAST_RETRY_MS ? client.retry_ms * 2 : LAST_RETRY_MS;
}

static void discover(void)
{
    client.state = SELECTING;
    send_query();
    retry_later();
}

static void begin_selecting(void)
{
    client.retry_ms = FIRST_RETRY_MS;
    new_exchange();
    use_packet_socket();
    say("dhcp: discover");
    discover();
}

static void lose_address(const char *why)
{
    say("dhcp: %s is lost: %s", dotted(client.lease.address), why);
    memset(&client.lease, 0, sizeof client.lease);
    network_clear();
    begin_selecting();
}

static void request_offer(void)
{
    client.state = REQUESTING;
    client.requests++;
    send_query();
    retry_later();
}

static void take_offer(const struct lease *offer)
{
    client.offer = *offer;
    client.retry_ms = FIRST_RETRY_MS;
    client.requests = 0;
    request_offer();
}

static uint64_t left_ms(uint32_t after_s)
{
    uint64_t due = client.bound_ms + (uint64_t)after_s * 1000;
    uint64_t now = now_ms();

    return due > now ? due - now : 0;
}

static void take_lease(const struct lease *lease)
{
    struct lease before = client.lease;
    struct lease after = *lease;

    if (!after.server)
        after.server = client.offer.server;
    client.state = BOUND;
    client.lease = after;
    client.bound_ms = now_ms();
    loop_close_later(client.fd);
    client.fd = -1;
    if (after.lifetime_s == DHCP_FOREVER)
        timer_stop(&client.timer);
    else
        timer_start(&client.timer, left_ms(after.renew_s));
    if (memcmp(&before, &after, sizeof after) == 0)
        return;
    if (before.address)
        network_clear();
    network_apply(&client.nic, &client.lease);
    client.bound(&client.lease);
    say("dhcp: bound to %s as %s", dotted(after.address), after.host_name[0] ? after.host_name : "(no name)");
}

/* Half of the time that is left, but not often (RFC 2131, 4.4.5), and never past `until_s`. */
static void ask_again(uint32_t until_s)
{
    uint64_t left = left_ms(until_s);
    uint64_t wait = left / 2 > RENEWAL_RETRY_MS ? left / 2 : RENEWAL_RETRY_MS;

    send_query();
    timer_start(&client.timer, wait < left ? wait : left);
}

static void keep_lease(void)
{
    if (left_ms(client.lease.lifetime_s) == 0) {
        lose_address("the lease ran out");
        return;
    }
    if (client.state == BOUND) {
        new_exchange();
        use_udp_socket();
    }
    if (left_ms(client.lease.rebind_s) > 0) {
        client.state = RENEWING;
        ask_again(client.lease.rebind_s);
    } else {
        client.state = REBINDING;
        ask_again(client.lease.lifetime_s);
    }
}

static void on_timer(void *context)
{
    (void)context;
    if (client.state == SELECTING)
        discover();
    else if (client.state == REQUESTING && client.requests < REQUESTS_PER_OFFER)
        request_offer();
    else if (client.state == REQUESTING)
        begin_selecting();
    else
        keep_lease();
}

static void refuse(void)
{
    if (has_address()) {
        lose_address("the server refused it");
    } else if (client.state == REQUESTING) {
        say("dhcp: refused");
        client.state = SELECTING;
        /* Not at once: two servers that disagree must not make a storm. */
        retry_later();
    }
}

static void take_message(const uint8_t *message, size_t length)
{
    struct lease lease;
    int type = dhcp_parse(message, length, client.xid, client.nic.mac, &lease);

    if (type == DHCP_OFFER && client.state == SELECTING)
        take_offer(&lease);
    else if (type == DHCP_ACK && client.state != SELECTING)
        take_lease(&lease);
    else if (type == DHCP_NAK)
        refuse();
}

static void on_packet(void *context, short events)
{
    uint8_t packet[DHCP_MAX_FRAME];

    (void)context;
    (void)events;
    /* One at a time: an answer may change the socket that we listen to. */
    ssize_t size = recv(client.fd, packet, sizeof packet, 0);
    if (size <= 0)
        return;
    if (has_address()) {
        take_message(packet, (size_t)size);
        return;
    }
    size_t length;
    const uint8_t *message = dhcp_unframe(packet, (size_t)size, &length);
    if (message)
        take_message(message, length);
}

void dhcp_start(const struct nic *nic, void (*bound)(const struct lease *lease))
{
    client.nic = *nic;
    client.bound = bound;
    client.timer.fire = on_timer;
    begin_selecting();
}

void dhcp_stop(void)
{
    timer_stop(&client.timer);
    loop_close(client.fd);
    client.fd = -1;
    memset(&client.lease, 0, sizeof client.lease);
    memset(&client.offer, 0, sizeof client.offer);
    network_clear();
}
