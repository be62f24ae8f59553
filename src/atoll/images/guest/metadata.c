/* The client of the metadata service: two requests, one after the other, until each was answered.
 * Effects: TCP to 169.254.169.254. */
#include "metadata.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http.h"
#include "json.h"
#include "log.h"
#include "loop.h"

#define ADDRESS "169.254.169.254"

enum {
    PORT = 80,
    MAX_HEAD = 8 * 1024,
    MAX_BODY = 1024 * 1024,
    FIRST_RETRY_MS = 50,
    LAST_RETRY_MS = 4000,
    ATTEMPT_MS = 5000,
};

enum what { DOCUMENT, USER_DATA, WHATS };

static const char *const PATHS[WHATS] = {
    [DOCUMENT] = "/latest/dynamic/instance-identity/document",
    [USER_DATA] = "/latest/user-data",
};

static struct {
    enum what what;
    int fd;
    char request[160];
    size_t request_length;
    size_t sent;
    uint8_t *data;
    size_t length;
    size_t room;
    uint64_t retry_ms;
    bool complained;
    char instance_id[128];
    struct timer timer; /* ends an attempt, or begins the next one */
    void (*done)(const struct metadata *metadata);
} client = {.fd = -1};

static void begin_attempt(void *context);
static void on_late(void *context);

static void end_attempt(void)
{
    timer_stop(&client.timer);
    loop_close(client.fd);
    client.fd = -1;
}

static void try_again(const char *why)
{
    end_attempt();
    /* Said once: a service that comes up late is usual, a service that is away for hours must not flood the log. */
    if (!client.complained)
        say("metadata: %s: %s; trying again", PATHS[client.what], why);
    client.complained = true;
    client.timer.fire = begin_attempt;
    timer_start(&client.timer, client.retry_ms);
    client.retry_ms = client.retry_ms * 2 < LAST_RETRY_MS ? client.retry_ms * 2 : LAST_RETRY_MS;
}

static void finish(const uint8_t *user_data, size_t length)
{
    struct metadata metadata = {
        .instance_id = client.instance_id, .user_data = user_data, .user_data_length = length};

    client.done(&metadata);
    free(client.data);
    client.data = NULL;
}

static void take_answer(int status, const uint8_t *body, size_t length)
{
    end_attempt();
    if (client.what == USER_DATA) {
        finish(body, status == 200 ? length : 0);
        return;
    }
    if (status != 200)
        say("metadata: no identity document (HTTP %d)", status);
    else if (!json_member((const char *)body, length, "instance_id", client.instance_id, sizeof client.instance_id))
        say("metadata: the identity document has no instance_id");
    client.what = USER_DATA;
    client.retry_ms = FIRST_RETRY_MS;
    client.complained = false;
    begin_attempt(NULL);
}

/* True when the answer is whole, taken, or given up. */
static bool judge(bool at_end)
{
    struct http_response response;

    if (!http_parse_response(client.data, client.length, &response)) {
        if (at_end || client.length > MAX_HEAD)
            try_again("not an HTTP answer");
        return at_end || client.length > MAX_HEAD;
    }
    size_t got = client.length - response.body_at;
    bool whole = response.sized ? got >= response.body_length : at_end;
    const char *trouble = NULL;
    if (response.status == 0)
        trouble = "not an HTTP answer";
    else if (response.status >= 500 || response.status == 429)
        trouble = "the service is not ready";
    else if (got > MAX_BODY || (response.sized && response.body_length > MAX_BODY))
        trouble = "larger than 1 MiB";
    else if (!whole && at_end)
        trouble = "cut short";
    if (trouble)
        try_again(trouble);
    else if (whole)
        take_answer(response.status, client.data + response.body_at, response.sized ? response.body_length : got);
    return trouble || whole;
}

static bool make_room(void)
{
    if (client.length < client.room)
        return true;
    size_t room = client.room ? client.room * 2 : 4096;
    uint8_t *data = realloc(client.data, room);
    if (!data)
        return false;
    client.data = data;
    client.room = room;
    return true;
}

static void receive(void)
{
    for (;;) {
        if (!make_room()) {
            try_again("out of memory");
            return;
        }
        ssize_t got = recv(client.fd, client.data + client.length, client.room - client.length, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got < 0) {
            try_again(strerror(errno));
            return;
        }
        client.length += (size_t)got;
        if (judge(got == 0))
            return;
    }
}

static void on_ready(void *context, short events)
{
    (void)context;
    (void)events;
    if (client.sent < client.request_length) {
        ssize_t sent = send(
            client.fd, client.request + client.sent, client.request_length - client.sent, MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            try_again(strerror(errno));
            return;
        }
        client.sent += sent > 0 ? (size_t)sent : 0;
        if (client.sent == client.request_length)
            loop_watch(client.fd, POLLIN, on_ready, NULL);
        return;
    }
    receive();
}

static void begin_attempt(void *context)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(ADDRESS)};

    (void)context;
    client.sent = client.length = 0;
    client.request_length = (size_t)snprintf(
        client.request, sizeof client.request, "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n",
        PATHS[client.what], ADDRESS);
    client.timer.fire = on_late;
    timer_start(&client.timer, ATTEMPT_MS);
    client.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (client.fd < 0 || (connect(client.fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) {
        try_again(strerror(errno));
        return;
    }
    loop_watch(client.fd, POLLOUT, on_ready, NULL);
}

static void on_late(void *context)
{
    (void)context;
    try_again("no answer");
}

void metadata_start(void (*done)(const struct metadata *metadata))
{
    client.done = done;
    client.retry_ms = FIRST_RETRY_MS;
    begin_attempt(NULL);
}

void metadata_stop(void)
{
    end_attempt();
    free(client.data);
    client.data = NULL;
    client.length = client.room = 0;
    client.what = DOCUMENT;
    client.complained = false;
    memset(client.instance_id, 0, sizeof client.instance_id);
}
