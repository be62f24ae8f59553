/* Feeds the guest agent's parsers for the tests: `sha256` hashes standard input, `fuzz SEED ROUNDS` gives all
 * parsers mutated and random bytes, in blocks of exactly their size so that the sanitizer sees every overrun. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel_message.h"
#include "dhcp_message.h"
#include "hands_message.h"
#include "http.h"
#include "json.h"
#include "netlink_message.h"
#include "sha256.h"

static uint64_t state;

static uint32_t chance(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static const uint8_t MAC[6] = {0x52, 0x54, 0, 0, 0, 1};

/* A sound answer with every option that the agent reads. */
static size_t sound_answer(uint8_t *message)
{
    static const uint8_t options[] = {
        53, 1, 5, 1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 6, 8, 10, 0, 0, 1, 10, 0, 0, 2,
        12, 3, 'w', 'e', 'b', 15, 4, 't', 'e', 's', 't', 26, 2, 5, 120, 51, 4, 0, 0, 14, 16,
        58, 4, 0, 0, 7, 8, 59, 4, 0, 0, 12, 78, 54, 4, 10, 0, 0, 1,
        121, 14, 0, 10, 0, 0, 1, 24, 192, 168, 7, 10, 0, 0, 9, 0, 0, 255,
    };
    struct dhcp_query query = {.type = DHCP_DISCOVER, .xid = 7};

    memcpy(query.mac, MAC, 6);
    dhcp_build(&query, message);
    message[0] = 2;
    message[16] = 10, message[19] = 5;
    memcpy(message + 240, options, sizeof options);
    return 240 + sizeof options;
}

/* What the kernel says of eth1: a header, the fixed part, the attributes for MAC and name. */
static size_t sound_link(uint8_t *message)
{
    static const uint8_t link[] = {
        56, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        10, 0, 1, 0, 0x52, 0x54, 0, 0, 0, 2, 0, 0, 9, 0, 3, 0, 'e', 't', 'h', '1', 0, 0, 0, 0,
    };

    memcpy(message, link, sizeof link);
    return sizeof link;
}

static void mutate(uint8_t *data, size_t *length)
{
    for (uint32_t changes = chance(6); changes; changes--)
        data[chance((uint32_t)*length)] = (uint8_t)chance(256);
    if (chance(3) == 0)
        *length = 1 + chance((uint32_t)*length);
}

static void feed(const uint8_t *data, size_t length)
{
    uint8_t *exact = malloc(length);
    struct http_response response;
    struct order order;
    struct lease lease;
    struct link_event event;
    char out[16];
    char hex[SHA256_HEX];
    size_t inner = 0;

    memcpy(exact, data, length);
    const uint8_t *message = dhcp_unframe(exact, length, &inner);
    if (message)
        dhcp_parse(message, inner, 7, MAC, &lease);
    if (dhcp_parse(exact, length, 7, MAC, &lease) && lease.route_count > DHCP_MAX_ROUTES)
        abort();
    http_parse_response(exact, length, &response);
    size_t head = http_head_length(exact, length);
    if (head)
        http_judge_request(exact, head);
    json_member((const char *)exact, length, "instance_id", out, sizeof out);
    channel_parse(exact, length, &order);
    if (strnlen(order.name, sizeof order.name) == sizeof order.name)
        abort();
    for (size_t at = 0; netlink_next(exact, length, &at, &event);) {
        if (strnlen(event.name, sizeof event.name) == sizeof event.name)
            abort();
    }
    for (size_t at = 0; at < length;) {
        struct hands_frame frame;
        struct hands_start start;
        int size = hands_parse(exact + at, length - at, &frame);

        if (size <= 0)
            break;
        at += (size_t)size;
        if (at > length || frame.size > HANDS_MOST)
            abort();
        if (frame.kind == HANDS_START && hands_parse_start(&frame, &start)) {
            const char *text = start.first;

            for (int i = 0; i < start.words + start.variables; i++)
                text += strlen(text) + 1;
            if ((const uint8_t *)text != frame.data + frame.size)
                abort();
        }
        hands_number(&frame);
    }
    http_take_word(exact, length, out, sizeof out);
    sha256_hex(exact, length, hex);
    free(exact);
}

static void fuzz_round(void)
{
    static const char *const TEXTS[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX: y\r\n\r\nbody of it..",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "{\"a\": [1, {\"instance_id\": \"x\"}], \"instance_id\": \"i-1\", \"b\": \"\\\"\"}",
        "identity 02:00:0a:01:00:05 web 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f 17",
        "park",
        "AQAEAB4Sk-_==\n",
    };
    uint8_t data[DHCP_MAX_FRAME], message[DHCP_MAX_MESSAGE];
    size_t length;

    switch (chance(6)) {
    case 0:
        length = sound_answer(data);
        break;
    case 1:
        length = dhcp_frame(message, sound_answer(message), data);
        data[21] = DHCP_SERVER_PORT, data[23] = DHCP_CLIENT_PORT;
        break;
    case 2: {
        const char *text = TEXTS[chance(sizeof TEXTS / sizeof *TEXTS)];

        length = strlen(text);
        memcpy(data, text, length);
        break;
    }
    case 4: {
        static const uint8_t start[] = {0, 24, 0, 80, 0, 1, 0, 2, 0, 1, 'j', 0, '/', 0, 'l', 's', 0, '-', 'l', 0, 'A', '=', 0};

        hands_head(data, HANDS_START, 7, sizeof start);
        memcpy(data + HANDS_HEAD, start, sizeof start);
        length = HANDS_HEAD + sizeof start;
        break;
    }
    case 3:
        length = sound_link(data);
        length += sound_link(data + length);
        break;
    default:
        length = 1 + chance(400);
        for (size_t i = 0; i < length; i++)
            data[i] = (uint8_t)chance(256);
    }
    mutate(data, &length);
    feed(data, length);
}

static int show_lease(void)
{
    uint8_t message[DHCP_MAX_MESSAGE];
    struct lease lease;
    struct in_addr gateway;
    int type = dhcp_parse(message, sound_answer(message), 7, MAC, &lease);

    printf("%d %s %u %u %u", type, lease.host_name, lease.mtu, lease.lifetime_s, lease.dns_count);
    for (uint32_t i = 0; i < lease.route_count; i++) {
        gateway.s_addr = lease.routes[i].gateway;
        printf(" %08x/%08x>%s", ntohl(lease.routes[i].destination), ntohl(lease.routes[i].mask), inet_ntoa(gateway));
    }
    printf("\n");
    return 0;
}

/* The type of the answer in a packet, where it is one for us. */
static int read_packet(void)
{
    uint8_t packet[DHCP_MAX_FRAME];
    size_t length, size = fread(packet, 1, sizeof packet, stdin);
    struct lease lease;
    const uint8_t *message = dhcp_unframe(packet, size, &length);

    printf("%d", message ? dhcp_parse(message, length, 7, MAC, &lease) : 0);
    return 0;
}

/* Whether we, who asked server 9 for address 5, take an answer of this type from that server with that address. */
static int judge_answer(char **words)
{
    struct lease asked = {.address = 5, .server = 9};
    struct lease answer = {.server = (uint32_t)atoi(words[1]), .address = (uint32_t)atoi(words[2])};

    printf("%d", dhcp_answers(atoi(words[0]), &answer, &asked, atoi(words[3])));
    return 0;
}

static int hash_input(void)
{
    static uint8_t data[1 << 21];
    char hex[SHA256_HEX];

    sha256_hex(data, fread(data, 1, sizeof data, stdin), hex);
    printf("%s\n", hex);
    return 0;
}

static int read_member(const char *key)
{
    char text[4096], out[64];
    size_t length = fread(text, 1, sizeof text, stdin);

    if (!json_member(text, length, key, out, sizeof out))
        return 1;
    printf("%s", out);
    return 0;
}

static int read_word(void)
{
    uint8_t body[1024];
    char out[16];

    if (!http_take_word(body, fread(body, 1, sizeof body, stdin), out, sizeof out))
        return 1;
    printf("%s", out);
    return 0;
}

static int read_links(void)
{
    static const char *const KINDS[] = {
        [LINK_NONE] = "none", [LINK_THERE] = "there", [LINK_GONE] = "gone", [LINK_REFUSED] = "refused"};
    uint8_t data[4096];
    size_t size = fread(data, 1, sizeof data, stdin), at = 0;
    struct link_event event;

    while (netlink_next(data, size, &at, &event))
        printf("%s %d %s %02x %d\n", KINDS[event.kind], event.index, event.name, event.mac[5], event.error);
    return 0;
}

static int read_order(void)
{
    uint8_t line[1024];
    struct order order;
    static const char *const KINDS[] = {
        [ORDER_NONE] = "none", [ORDER_IDENTITY] = "identity", [ORDER_REHEARSE] = "rehearse", [ORDER_PARK] = "park"};

    printf("%s", KINDS[channel_parse(line, fread(line, 1, sizeof line, stdin), &order)]);
    if (order.clock_ns) {
        printf(" %02x%02x %s ", order.mac[0], order.mac[5], order.name);
        printf("%02x%02x %llu", order.seed[0], order.seed[31], (unsigned long long)order.clock_ns);
    }
    return 0;
}

int main(int count, char **words)
{
    if (count == 2 && !strcmp(words[1], "order"))
        return read_order();
    if (count == 2 && !strcmp(words[1], "packet"))
        return read_packet();
    if (count == 6 && !strcmp(words[1], "answers"))
        return judge_answer(words + 2);
    if (count == 2 && !strcmp(words[1], "word"))
        return read_word();
    if (count == 2 && !strcmp(words[1], "links"))
        return read_links();
    if (count == 2 && !strcmp(words[1], "sha256"))
        return hash_input();
    if (count == 2 && !strcmp(words[1], "lease"))
        return show_lease();
    if (count == 3 && !strcmp(words[1], "member"))
        return read_member(words[2]);
    if (count != 4 || strcmp(words[1], "fuzz"))
        return 2;
    state = strtoull(words[2], NULL, 10);
    for (long rounds = atol(words[3]); rounds; rounds--)
        fuzz_round();
    return 0;
}
