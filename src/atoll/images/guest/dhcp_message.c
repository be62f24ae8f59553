/* DHCP messages as bytes (RFC 2131, 2132, 3442). Pure: every length that came from outside is checked here. */
#include "dhcp_message.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

enum {
    IP_HEADER = 20,
    UDP_HEADER = 8,
    FIXED_PART = 236,
    OPTIONS_AT = 240,
    SMALLEST_MESSAGE = 300, /* BOOTP relays drop what is shorter */
    SHORTEST_LEASE_S = 8,   /* so that renewing cannot become a busy loop */
};

enum option {
    OPTION_PAD = 0,
    OPTION_MASK = 1,
    OPTION_ROUTER = 3,
    OPTION_DNS = 6,
    OPTION_HOST_NAME = 12,
    OPTION_DOMAIN = 15,
    OPTION_MTU = 26,
    OPTION_WANTED_ADDRESS = 50,
    OPTION_LIFETIME = 51,
    OPTION_TYPE = 53,
    OPTION_SERVER = 54,
    OPTION_LIST = 55,
    OPTION_MAX_SIZE = 57,
    OPTION_RENEW = 58,
    OPTION_REBIND = 59,
    OPTION_CLASSLESS_ROUTES = 121,
    OPTION_END = 255,
};

static const uint8_t COOKIE[4] = {0x63, 0x82, 0x53, 0x63};

static uint8_t *put_option(uint8_t *at, uint8_t code, const void *value, uint8_t length)
{
    *at++ = code;
    *at++ = length;
    memcpy(at, value, length);
    return at + length;
}

size_t dhcp_build(const struct dhcp_query *query, uint8_t *message)
{
    static const uint8_t wanted[] = {
        OPTION_MASK,     OPTION_CLASSLESS_ROUTES, OPTION_ROUTER, OPTION_DNS,   OPTION_HOST_NAME, OPTION_DOMAIN,
        OPTION_MTU,      OPTION_LIFETIME,         OPTION_RENEW,  OPTION_REBIND,
    };
    const uint8_t type = (uint8_t)query->type;
    const uint16_t max_size = htons(DHCP_MAX_FRAME);
    const uint16_t seconds = htons(query->seconds);
    uint8_t *at = message + OPTIONS_AT;

    memset(message, 0, DHCP_MAX_MESSAGE);
    message[0] = 1; /* request */
    message[1] = 1; /* Ethernet */
    message[2] = 6;
    memcpy(message + 4, &query->xid, 4);
    memcpy(message + 8, &seconds, 2);
    memcpy(message + 12, &query->own_address, 4);
    memcpy(message + 28, query->mac, 6);
    memcpy(message + FIXED_PART, COOKIE, sizeof COOKIE);

    at = put_option(at, OPTION_TYPE, &type, 1);
    if (query->wanted_address)
        at = put_option(at, OPTION_WANTED_ADDRESS, &query->wanted_address, 4);
    if (query->server)
        at = put_option(at, OPTION_SERVER, &query->server, 4);
    at = put_option(at, OPTION_MAX_SIZE, &max_size, 2);
    at = put_option(at, OPTION_LIST, wanted, sizeof wanted);
    *at++ = OPTION_END;

    size_t length = (size_t)(at - message);
    return length < SMALLEST_MESSAGE ? SMALLEST_MESSAGE : length;
}

static uint16_t ip_checksum(const uint8_t *header)
{
    uint32_t sum = 0;

    for (int i = 0; i < IP_HEADER; i += 2)
        sum += (uint32_t)(header[i] << 8 | header[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void put16(uint8_t *at, size_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

size_t dhcp_frame(const uint8_t *message, size_t length, uint8_t *packet)
{
    uint8_t *udp = packet + IP_HEADER;

    memset(packet, 0, IP_HEADER + UDP_HEADER);
    packet[0] = 0x45;
    put16(packet + 2, IP_HEADER + UDP_HEADER + length);
    packet[8] = 64; /* hops */
    packet[9] = 17; /* UDP */
    memset(packet + 16, 0xff, 4);
    put16(packet + 10, ip_checksum(packet));
    put16(udp, DHCP_CLIENT_PORT);
    put16(udp + 2, DHCP_SERVER_PORT);
    put16(udp + 4, UDP_HEADER + length); /* a checksum of 0 means none, which UDP over IPv4 allows */
    memcpy(udp + UDP_HEADER, message, length);
    return IP_HEADER + UDP_HEADER + length;
}

const uint8_t *dhcp_unframe(const uint8_t *packet, size_t size, size_t *length)
{
    if (size < IP_HEADER + UDP_HEADER || packet[0] >> 4 != 4 || packet[9] != 17)
        return NULL;
    size_t header = (size_t)(packet[0] & 15) * 4;
    size_t total = get16(packet + 2);
    /* Padding after the packet is usual on Ethernet; a packet cut short or a fragment is not for us. */
    if (header < IP_HEADER || total > size || total < header + UDP_HEADER || (get16(packet + 6) & 0x3fff))
        return NULL;
    const uint8_t *udp = packet + header;
    size_t udp_length = get16(udp + 4);
    /* The UDP checksum is not verified: one that the host left to its network card is not filled in here. */
    if (get16(udp) != DHCP_SERVER_PORT || get16(udp + 2) != DHCP_CLIENT_PORT)
        return NULL;
    if (udp_length < UDP_HEADER || udp_length > total - header)
        return NULL;
    *length = udp_length - UDP_HEADER;
    return udp + UDP_HEADER;
}

/* Names end up in files and on the console: only what a DNS name may hold, else nothing at all. */
static void take_name(const uint8_t *value, size_t length, char *out, size_t room)
{
    while (length && value[length - 1] == 0)
        length--;
    if (length >= room)
        return;
    for (size_t i = 0; i < length; i++) {
        if (!isalnum(value[i]) && value[i] != '-' && value[i] != '.')
            return;
    }
    memset(out, 0, room);
    memcpy(out, value, length);
}

static uint32_t mask_of(unsigned bits)
{
    return bits ? htonl(UINT32_MAX << (32 - bits)) : 0;
}

/* RFC 3442: width of the prefix, as many octets of it as it needs, then the gateway. */
static void take_classless_routes(const uint8_t *value, size_t length, struct lease *lease)
{
    const uint8_t *end = value + length;

    lease->route_count = 0;
    memset(lease->routes, 0, sizeof lease->routes);
    while (value < end && lease->route_count < DHCP_MAX_ROUTES) {
        struct route route = {0};
        unsigned bits = *value++;
        size_t octets = (bits + 7) / 8;

        if (bits > 32 || (size_t)(end - value) < octets + 4)
            return;
        memcpy(&route.destination, value, octets);
        route.mask = mask_of(bits);
        route.destination &= route.mask;
        memcpy(&route.gateway, value + octets, 4);
        value += octets + 4;
        lease->routes[lease->route_count++] = route;
    }
}

static uint32_t take_number(const uint8_t *value, size_t length, uint32_t otherwise)
{
    uint32_t number;

    if (length != 4)
        return otherwise;
    memcpy(&number, value, 4);
    return ntohl(number);
}

struct parsed {
    int type;
    bool classless;
    uint32_t router;
};

static void take_option(uint8_t code, const uint8_t *value, size_t length, struct lease *lease, struct parsed *seen)
{
    switch (code) {
    case OPTION_TYPE:
        seen->type = length == 1 ? value[0] : 0;
        break;
    case OPTION_MASK:
        if (length == 4)
            memcpy(&lease->mask, value, 4);
        break;
    case OPTION_ROUTER:
        if (length >= 4)
            memcpy(&seen->router, value, 4);
        break;
    case OPTION_SERVER:
        if (length == 4)
            memcpy(&lease->server, value, 4);
        break;
    case OPTION_DNS:
        lease->dns_count = (uint32_t)(length / 4 < DHCP_MAX_SERVERS ? length / 4 : DHCP_MAX_SERVERS);
        memset(lease->dns, 0, sizeof lease->dns);
        memcpy(lease->dns, value, lease->dns_count * 4);
        break;
    case OPTION_HOST_NAME:
        take_name(value, length, lease->host_name, sizeof lease->host_name);
        break;
    case OPTION_DOMAIN:
        take_name(value, length, lease->domain, sizeof lease->domain);
        break;
    case OPTION_MTU:
        /* RFC 791: every link carries 68 bytes; below that, IPv4 would be switched off. */
        if (length == 2 && get16(value) >= 68)
            lease->mtu = get16(value);
        break;
    case OPTION_LIFETIME:
        lease->lifetime_s = take_number(value, length, lease->lifetime_s);
        break;
    case OPTION_RENEW:
        lease->renew_s = take_number(value, length, 0);
        break;
    case OPTION_REBIND:
        lease->rebind_s = take_number(value, length, 0);
        break;
    case OPTION_CLASSLESS_ROUTES:
        take_classless_routes(value, length, lease);
        seen->classless = lease->route_count > 0;
        break;
    }
}

static bool take_options(const uint8_t *at, const uint8_t *end, struct lease *lease, struct parsed *seen)
{
    while (at < end && *at != OPTION_END) {
        uint8_t code = *at++;

        if (code == OPTION_PAD)
            continue;
        if (at >= end || (size_t)(end - at - 1) < *at)
            return false;
        take_option(code, at + 1, *at, lease, seen);
        at += 1 + *at;
    }
    return true;
}

/* RFC 2131, 4.4.5, for a server that gives no times or times that make no sense. */
static void settle_times(struct lease *lease)
{
    if (lease->lifetime_s == DHCP_FOREVER)
        return;
    if (lease->lifetime_s < SHORTEST_LEASE_S)
        lease->lifetime_s = SHORTEST_LEASE_S;
    if (!lease->rebind_s || lease->rebind_s >= lease->lifetime_s)
        lease->rebind_s = lease->lifetime_s - lease->lifetime_s / 8;
    if (!lease->renew_s || lease->renew_s >= lease->rebind_s)
        lease->renew_s = lease->rebind_s / 7 * 4;
}

static uint32_t natural_mask(uint32_t address)
{
    uint8_t first;

    memcpy(&first, &address, 1);
    return mask_of(first < 128 ? 8 : first < 192 ? 16 : 24);
}

static bool usable(uint32_t address)
{
    uint8_t first;

    memcpy(&first, &address, 1);
    return first != 0 && first != 127 && first < 224;
}

int dhcp_parse(const uint8_t *message, size_t length, uint32_t xid, const uint8_t mac[6], struct lease *lease)
{
    struct parsed seen = {0};

    if (length < OPTIONS_AT || message[0] != 2 || message[1] != 1 || message[2] != 6)
        return 0;
    if (memcmp(message + 4, &xid, 4) || memcmp(message + 28, mac, 6)
        || memcmp(message + FIXED_PART, COOKIE, sizeof COOKIE))
        return 0;
    memset(lease, 0, sizeof *lease);
    memcpy(&lease->address, message + 16, 4);
    lease->lifetime_s = DHCP_FOREVER;
    if (!take_options(message + OPTIONS_AT, message + length, lease, &seen))
        return 0;
    if (seen.type == DHCP_NAK)
        return DHCP_NAK;
    if ((seen.type != DHCP_OFFER && seen.type != DHCP_ACK) || !usable(lease->address) || lease->lifetime_s == 0)
        return 0;
    if (!lease->mask)
        lease->mask = natural_mask(lease->address);
    /* RFC 3442: a server that gives classless routes means them instead of the router. */
    if (!seen.classless && usable(seen.router))
        lease->routes[lease->route_count++] = (struct route){.gateway = seen.router};
    settle_times(lease);
    return seen.type;
}

bool dhcp_answers(int type, const struct lease *answer, const struct lease *asked, bool by_anybody)
{
    if (type == DHCP_OFFER)
        return answer->server != 0; /* who it is from is part of what we answer */
    if (!by_anybody && answer->server != asked->server)
        return false;
    return type == DHCP_NAK || (type == DHCP_ACK && answer->address == asked->address);
}
