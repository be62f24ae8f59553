/* The guest's network interfaces. Effects: configures links and routes, writes /etc, sends an ARP. */
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"

#define METADATA_ADDRESS "169.254.169.254"

/* Should nobody ask for it before. */
enum { SETTLE_MS = 1000 };

static int control_socket(void)
{
    static int fd = -1;

    if (fd < 0)
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd;
}

static struct ifreq request_for(const char *interface)
{
    struct ifreq request = {0};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    return request;
}

static bool bring_up(const char *interface)
{
    struct ifreq request = request_for(interface);

    if (ioctl(control_socket(), SIOCGIFFLAGS, &request))
        return false;
    if (request.ifr_flags & IFF_UP)
        return true;
    request.ifr_flags |= IFF_UP;
    return ioctl(control_socket(), SIOCSIFFLAGS, &request) == 0;
}

static struct sockaddr socket_address(uint32_t address)
{
    struct sockaddr_in internet = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    struct sockaddr generic;

    memcpy(&generic, &internet, sizeof generic);
    return generic;
}

static void set_address(const struct nic *nic, unsigned long what, uint32_t address)
{
    struct ifreq request = request_for(nic->name);

    request.ifr_addr = socket_address(address);
    if (ioctl(control_socket(), what, &request) && address)
        say("setting an address: %s", strerror(errno));
}

static void add_route(struct route route)
{
    char interface[] = INTERFACE;
    struct rtentry entry = {
        .rt_dst = socket_address(route.destination),
        .rt_genmask = socket_address(route.mask),
        .rt_gateway = socket_address(route.gateway),
        .rt_flags = RTF_UP | (route.gateway ? RTF_GATEWAY : 0) | (route.mask == UINT32_MAX ? RTF_HOST : 0),
        .rt_dev = interface,
    };

    if (ioctl(control_socket(), SIOCADDRT, &entry) && errno != EEXIST)
        say("adding a route: %s", strerror(errno));
}

static void add_routes(const struct lease *lease)
{
    for (uint32_t i = 0; i < lease->route_count; i++) {
        uint32_t gateway = lease->routes[i].gateway;

        /* A gateway outside of our network, as with a /32 address, must be made a neighbour first. */
        if (gateway && (gateway ^ lease->address) & lease->mask)
            add_route((struct route){.destination = gateway, .mask = UINT32_MAX});
        add_route(lease->routes[i]);
    }
    if (!lease->route_count)
        add_route((struct route){.destination = inet_addr(METADATA_ADDRESS), .mask = UINT32_MAX});
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        say("writing %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void write_resolver(const struct lease *lease)
{
    char text[512] = "";
    size_t length = 0;

    if (lease->domain[0])
        length += (size_t)snprintf(text, sizeof text, "search %s\n", lease->domain);
    for (uint32_t i = 0; i < lease->dns_count; i++) {
        struct in_addr server = {lease->dns[i]};

        length += (size_t)snprintf(text + length, sizeof text - length, "nameserver %s\n", inet_ntoa(server));
    }
    write_file("/etc/resolv.conf", text);
}

static void set_host_name(const struct lease *lease)
{
    char text[256];
    struct in_addr address = {lease->address};

    if (!lease->host_name[0])
        return;
    if (sethostname(lease->host_name, strlen(lease->host_name)))
        say("setting the host name: %s", strerror(errno));
    snprintf(text, sizeof text, "127.0.0.1 localhost\n%s %s\n", inet_ntoa(address), lease->host_name);
    write_file("/etc/hosts", text);
}

static void set_mtu(const struct nic *nic, uint32_t mtu)
{
    struct ifreq request = request_for(nic->name);

    request.ifr_mtu = (int)mtu;
    if (ioctl(control_socket(), SIOCSIFMTU, &request))
        say("setting the MTU to %u: %s", (unsigned)mtu, strerror(errno));
}

/* Tells the neighbours: the host's own first ARP request can take a quarter of a second. */
static void announce(const struct nic *nic, uint32_t address)
{
    int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ARP));
    struct sockaddr_ll to = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_ARP),
        .sll_ifindex = nic->index,
        .sll_halen = 6,
        .sll_addr = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
    };
    uint8_t arp[28] = {0, ARPHRD_ETHER, ETHERTYPE_IP >> 8, ETHERTYPE_IP & 0xff, 6, 4, 0, ARPOP_REQUEST};

    memcpy(arp + 8, nic->mac, 6);
    memcpy(arp + 14, &address, 4);
    memcpy(arp + 24, &address, 4);
    if (fd < 0 || sendto(fd, arp, sizeof arp, 0, (struct sockaddr *)&to, sizeof to) < 0)
        say("announcing the address: %s", strerror(errno));
    loop_close_later(fd);
}

void network_start_loopback(void)
{
    if (!bring_up("lo"))
        say("bringing up lo: %s", strerror(errno));
}

bool network_start_nic(struct nic *nic)
{
    struct ifreq request = request_for(INTERFACE);

    if (!bring_up(INTERFACE) || ioctl(control_socket(), SIOCGIFHWADDR, &request))
        return false;
    memcpy(nic->mac, request.ifr_hwaddr.sa_data, 6);
    snprintf(nic->name, sizeof nic->name, "%s", INTERFACE);
    nic->index = (int)if_nametoindex(INTERFACE);
    return nic->index > 0;
}

bool network_is_ours(void)
{
    struct ifreq request = request_for(INTERFACE);

    /* Asks for what is there already: whether that is refused is all that we want to know. */
    return !ioctl(control_socket(), SIOCGIFFLAGS, &request) && !ioctl(control_socket(), SIOCSIFFLAGS, &request);
}

static uint32_t get_address(const char *interface, unsigned long what)
{
    struct ifreq request = request_for(interface);
    struct sockaddr_in internet;

    if (ioctl(control_socket(), what, &request))
        return 0;
    memcpy(&internet, &request.ifr_addr, sizeof internet);
    return internet.sin_addr.s_addr;
}

/* A datagram socket that is connected has looked for a route, and has sent nothing. */
static bool has_route(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = inet_addr(address)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to);

    if (fd >= 0)
        close(fd);
    return found;
}

bool network_given(struct lease *lease)
{
    memset(lease, 0, sizeof *lease);
    lease->address = get_address(INTERFACE, SIOCGIFADDR);
    lease->mask = get_address(INTERFACE, SIOCGIFNETMASK);
    gethostname(lease->host_name, sizeof lease->host_name - 1);
    return lease->address && has_route(METADATA_ADDRESS);
}

void network_allow_ipv6(bool allowed)
{
    static const char *const LINKS[] = {"default", INTERFACE};

    for (size_t i = 0; i < sizeof LINKS / sizeof *LINKS; i++) {
        char path[64];

        snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", LINKS[i]);
        /* Not there without the interface, or in a kernel without IPv6. */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
            (void)!write(fd, allowed ? "0" : "1", 1);
            close(fd);
        }
    }
}

bool network_set_mac(struct nic *nic, const uint8_t mac[6])
{
    struct ifreq request = request_for(INTERFACE);

    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(request.ifr_hwaddr.sa_data, mac, 6);
    if (ioctl(control_socket(), SIOCSIFHWADDR, &request)) {
        say("setting the MAC: %s", strerror(errno));
        return false;
    }
    memcpy(nic->mac, mac, 6);
    return true;
}

static struct {
    struct nic nic;
    struct lease lease;
    struct timer timer;
} unsettled;

static void settle(void *context)
{
    (void)context;
    announce(&unsettled.nic, unsettled.lease.address);
    write_resolver(&unsettled.lease);
    set_host_name(&unsettled.lease);
}

void network_settle(void)
{
    if (!unsettled.timer.armed)
        return;
    timer_stop(&unsettled.timer);
    settle(NULL);
}

static void set_link(const struct nic *nic, const struct lease *lease)
{
    if (lease->mtu)
        set_mtu(nic, lease->mtu);
    set_address(nic, SIOCSIFADDR, lease->address);
    set_address(nic, SIOCSIFNETMASK, lease->mask);
}

/* What the first connection needs; somebody waits for it. */
void network_apply(const struct nic *nic, const struct lease *lease)
{
    set_link(nic, lease);
    add_routes(lease);
    unsettled.nic = *nic;
    unsettled.lease = *lease;
    unsettled.timer.fire = settle;
    timer_start(&unsettled.timer, SETTLE_MS);
}

void network_clear(const struct nic *nic)
{
    if (unsettled.nic.index == nic->index)
        timer_stop(&unsettled.timer);
    /* With its last address, an interface loses its routes too. */
    set_address(nic, SIOCSIFADDR, 0);
}

bool network_bring_up(const struct nic *nic)
{
    return bring_up(nic->name);
}

void network_apply_secondary(const struct nic *nic, const struct lease *lease)
{
    set_link(nic, lease);
    announce(nic, lease->address);
}

uint32_t network_address(const struct nic *nic)
{
    return get_address(nic->name, SIOCGIFADDR);
}
