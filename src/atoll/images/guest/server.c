/* The guest's own page, as JSON. Effects: TCP on port 80.
 *
 * A connection reads one request, writes one answer, then waits for the client to close; it is closed after
 * CONNECTION_MS whatever it does. When all places are taken, the oldest makes room: a client that is slow on
 * purpose cannot keep the others out.
 */
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "json.h"
#include "log.h"
#include "loop.h"
#include "secondary.h"

enum { PLACES = 16, CONNECTION_MS = 5000, MAX_REQUEST = 2048, MAX_ANSWER = 4096 };

static struct connection {
    int fd; /* 0: the place is free */
    enum { READING, WRITING, CLOSING } state;
    uint64_t order;
    size_t received;
    size_t answer_length;
    size_t sent;
    struct timer deadline;
    union {
        uint8_t request[MAX_REQUEST];
        char answer[MAX_ANSWER];
    };
} connections[PLACES];

static const struct instance *shown;
static uint64_t accepted;
static int listener = -1;

static void drop(struct connection *connection)
{
    timer_stop(&connection->deadline);
    loop_close(connection->fd);
    connection->fd = 0;
}

static void on_deadline(void *context)
{
    drop(context);
}

static void read_boot_id(char *out, size_t room)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, room - 1) : 0;

    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static size_t put_interface(char *out, size_t room, const struct nic *nic, uint32_t address)
{
    const uint8_t *mac = nic->mac;
    char ip[INET_ADDRSTRLEN + 2] = "null";
    struct in_addr in = {address};

    if (address)
        snprintf(ip, sizeof ip, "\"%s\"", inet_ntoa(in));
    return (size_t)snprintf(
        out, room, "{\"name\": \"%s\", \"mac\": \"%02x:%02x:%02x:%02x:%02x:%02x\", \"ip\": %s}", nic->name, mac[0],
        mac[1], mac[2], mac[3], mac[4], mac[5], ip);
}

static void list_interfaces(char *out, size_t room)
{
    size_t length = put_interface(out, room, &shown->nic, shown->lease.address);

    for (int place = 0; place < SECONDARY_NICS; place++) {
        const struct nic *nic = secondary_at(place);

        if (!nic)
            continue;
        length += (size_t)snprintf(out + length, room - length, ", ");
        length += put_interface(out + length, room - length, nic, network_address(nic));
    }
}

static size_t describe(char *out, size_t room)
{
    char host[65] = "", quoted_host[6 * 65], quoted_id[6 * sizeof shown->id], boot_id[64], status[16] = "null";
    char interfaces[(SECONDARY_NICS + 1) * 96];
    const uint8_t *mac = shown->nic.mac;
    struct in_addr address = {shown->lease.address};
    struct timespec clock;
    uint64_t now = now_ms();

    clock_gettime(CLOCK_REALTIME, &clock);
    gethostname(host, sizeof host - 1);
    json_quote(host, quoted_host, sizeof quoted_host);
    json_quote(shown->id[0] ? shown->id : NULL, quoted_id, sizeof quoted_id);
    read_boot_id(boot_id, sizeof boot_id);
    list_interfaces(interfaces, sizeof interfaces);
    if (shown->script_ended)
        snprintf(status, sizeof status, "%d", shown->script_status);
    return (size_t)snprintf(
        out, room,
        "{\"hostname\": %s, \"ip\": \"%s\", \"mac\": \"%02x:%02x:%02x:%02x:%02x:%02x\", \"interfaces\": [%s], "
        "\"instance_id\": %s, "
        "\"boot_id\": \"%s\", \"machine_id\": \"%s\", \"random\": \"%s\", \"user_data_sha256\": \"%s\", "
        "\"user_data_status\": %s, \"clock_s\": %llu.%03u, \"uptime_s\": %llu.%03u}\n",
        quoted_host, inet_ntoa(address), mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], interfaces,
        quoted_id, boot_id, shown->machine_id, shown->random, shown->user_data_sha256, status,
        (unsigned long long)clock.tv_sec, (unsigned)(clock.tv_nsec / 1000000), (unsigned long long)(now / 1000),
        (unsigned)(now % 1000));
}

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    default:
        return "Bad Request";
    }
}

static void compose(struct connection *connection, int status)
{
    char body[3072];
    size_t length = status == 200 ? describe(body, sizeof body)
                                  : (size_t)snprintf(body, sizeof body, "{\"error\": \"%s\"}\n", reason(status));

    connection->state = WRITING;
    connection->sent = 0;
    connection->answer_length = (size_t)snprintf(
        connection->answer, sizeof connection->answer,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n%s",
        status, reason(status), length, status == 405 ? "Allow: GET\r\n" : "", body);
}

static void on_connection(void *context, short events);

/* Each step returns false when it has to wait for the client, or has dropped it. */
static bool step_read(struct connection *connection)
{
    size_t room = sizeof connection->request - connection->received;
    ssize_t got = recv(connection->fd, connection->request + connection->received, room, 0);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        drop(connection);
        return false;
    }
    connection->received += (size_t)got;
    size_t head = http_head_length(connection->request, connection->received);
    if (head)
        compose(connection, http_judge_request(connection->request, head));
    else if (connection->received == sizeof connection->request)
        compose(connection, 400);
    return true;
}

static bool step_write(struct connection *connection)
{
    const char *rest = connection->answer + connection->sent;
    ssize_t sent = send(connection->fd, rest, connection->answer_length - connection->sent, MSG_NOSIGNAL);

    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        loop_watch(connection->fd, POLLOUT, on_connection, connection);
        return false;
    }
    if (sent < 0) {
        drop(connection);
        return false;
    }
    connection->sent += (size_t)sent;
    if (connection->sent == connection->answer_length) {
        /* Closing with unread input would reset the connection, and could take the answer with it. */
        shutdown(connection->fd, SHUT_WR);
        connection->state = CLOSING;
        loop_watch(connection->fd, POLLIN, on_connection, connection);
    }
    return true;
}

static bool step_close(struct connection *connection)
{
    uint8_t unread[512];
    ssize_t got = recv(connection->fd, unread, sizeof unread, 0);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        drop(connection);
    return false;
}

static void on_connection(void *context, short events)
{
    static bool (*const STEPS[])(struct connection *) = {
        [READING] = step_read, [WRITING] = step_write, [CLOSING] = step_close};
    struct connection *connection = context;

    (void)events;
    while (connection->fd && STEPS[connection->state](connection))
        ;
}

static struct connection *free_place(void)
{
    struct connection *oldest = connections;

    for (struct connection *place = connections; place < connections + PLACES; place++) {
        if (!place->fd)
            return place;
        if (place->order < oldest->order)
            oldest = place;
    }
    drop(oldest);
    return oldest;
}

static void on_listener(void *context, short events)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)context;
    (void)events;
    if (fd < 0)
        return;
    struct connection *connection = free_place();
    *connection = (struct connection){.fd = fd, .order = ++accepted};
    connection->deadline = (struct timer){.fire = on_deadline, .context = connection};
    timer_start(&connection->deadline, CONNECTION_MS);
    if (!loop_watch(fd, POLLIN, on_connection, connection))
        drop(connection);
    else
        on_connection(connection, POLLIN);
}

/* One socket for IPv6 and IPv4; for IPv4 alone where the kernel has nothing else. */
static int open_port(void)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(SERVER_PORT)};
    const struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(SERVER_PORT)};
    const int yes = 1, no = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool both = fd >= 0 && !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);

    if (!both) {
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes)
        && !bind(fd, both ? (const void *)&any : (const void *)&any4, both ? sizeof any : sizeof any4))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool server_start(const struct instance *instance)
{
    shown = instance;
    listener = open_port();
    if (listener < 0 || listen(listener, 64)) {
        say("opening port %d: %s", SERVER_PORT, strerror(errno));
        server_stop();
        return false;
    }
    return loop_watch(listener, POLLIN, on_listener, NULL);
}

void server_stop(void)
{
    loop_close(listener);
    listener = -1;
    for (struct connection *place = connections; place < connections + PLACES; place++) {
        if (place->fd)
            drop(place);
    }
}
