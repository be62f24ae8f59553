/* The client of the metadata service: two requests, side by side, until each was answered.
 *
 * Both are made with a token (IMDSv2), which is asked for first, while their connections open; where the service gives
 * none, without it. A token is kept: one who was in a rehearsal is the same machine afterwards, and need not ask again.
 *
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
#define TOKEN_HEADER "X-aws-ec2-metadata-token"

enum {
    PORT = 80,
    MAX_HEAD = 8 * 1024,
    MAX_BODY = 1024 * 1024,
    FIRST_RETRY_MS = 50,
    LAST_RETRY_MS = 4000,
    ATTEMPT_MS = 5000,
    TOKEN_S = 6 * 3600,
    TOKEN_ROOM = 256,
    UNAUTHORIZED = 401,
};

/* One of the requests. */
struct fetch {
    const char *path;
    int fd;
    char request[512];
    size_t request_length;
    size_t sent;
    uint8_t *data;
    size_t length;
    size_t room;
    uint64_t retry_ms;
    bool complained;
    struct timer timer; /* ends an attempt, or begins the next one */
    bool answered;
    bool with_token;
    bool waits_for_token;
    int status;
    size_t body_at; /* in `data` */
    size_t body_length;
};

static struct fetch document = {.path = "/latest/dynamic/instance-identity/document", .fd = -1};
static struct fetch user_data = {.path = "/latest/user-data", .fd = -1};
static struct fetch token = {.path = "/latest/api/token", .fd = -1};
static char token_text[TOKEN_ROOM]; /* empty: there is none */
static void (*on_done)(const struct metadata *metadata);

static void begin(struct fetch *fetch);
static void begin_attempt(void *context);
static void send_request(struct fetch *fetch);
static void on_late(void *context);

static void end_attempt(struct fetch *fetch)
{
    timer_stop(&fetch->timer);
    loop_close(fetch->fd);
    fetch->fd = -1;
}

static void try_again(struct fetch *fetch, const char *why)
{
    end_attempt(fetch);
    /* Said once: a service that comes up late is usual, a service that is away for hours must not flood the log. */
    if (!fetch->complained)
        say("metadata: %s: %s; trying again", fetch->path, why);
    fetch->complained = true;
    fetch->timer.fire = begin_attempt;
    timer_start(&fetch->timer, fetch->retry_ms);
    fetch->retry_ms = fetch->retry_ms * 2 < LAST_RETRY_MS ? fetch->retry_ms * 2 : LAST_RETRY_MS;
}

static void forget(struct fetch *fetch)
{
    end_attempt(fetch);
    free(fetch->data);
    *fetch = (struct fetch){.path = fetch->path, .fd = -1};
}

static void forget_token(void)
{
    forget(&token);
    explicit_bzero(token_text, sizeof token_text);
}

static void read_instance_id(char *out, size_t room)
{
    const char *body = (const char *)document.data + document.body_at;

    out[0] = 0;
    if (document.status != 200)
        say("metadata: no identity document (HTTP %d)", document.status);
    else if (!json_member(body, document.body_length, "instance_id", out, room))
        say("metadata: the identity document has no instance_id");
}

static void finish(void)
{
    char instance_id[128];
    struct metadata metadata = {
        .instance_id = instance_id,
        .user_data = user_data.data + user_data.body_at,
        .user_data_length = user_data.status == 200 ? user_data.body_length : 0,
    };

    read_instance_id(instance_id, sizeof instance_id);
    on_done(&metadata);
    metadata_stop();
}

/* It is known now whether there is a token. */
static void go_on(struct fetch *fetch)
{
    if (!fetch->waits_for_token)
        return;
    fetch->waits_for_token = false;
    send_request(fetch);
}

static void take_token(void)
{
    token.answered = true;
    if (token.status != 200
        || !http_take_word(token.data + token.body_at, token.body_length, token_text, sizeof token_text))
        token_text[0] = 0;
    go_on(&document);
    go_on(&user_data);
}

static void want_token(struct fetch *fetch)
{
    if (!fetch->with_token) {
        say("metadata: the service wants a token and gives none (HTTP %d)", token.status);
        fetch->answered = true;
        return;
    }
    /* It ended with the service that gave it. Another may be under way already. */
    if (token.answered) {
        forget_token();
        begin(&token);
    }
    try_again(fetch, "the token was refused");
}

static void take_answer(struct fetch *fetch, const struct http_response *response, size_t length)
{
    end_attempt(fetch);
    fetch->status = response->status;
    fetch->body_at = response->body_at;
    fetch->body_length = length;
    if (fetch == &token)
        take_token();
    else if (fetch->status == UNAUTHORIZED)
        want_token(fetch);
    else
        fetch->answered = true;
    if (document.answered && user_data.answered)
        finish();
}

/* True when the answer is whole, taken, or given up. */
static bool judge(struct fetch *fetch, bool at_end)
{
    struct http_response response;

    if (!http_parse_response(fetch->data, fetch->length, &response)) {
        bool hopeless = at_end || fetch->length > MAX_HEAD;

        if (hopeless)
            try_again(fetch, "not an HTTP answer");
        return hopeless;
    }
    size_t got = fetch->length - response.body_at;
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
        try_again(fetch, trouble);
    else if (whole)
        take_answer(fetch, &response, response.sized ? response.body_length : got);
    return trouble || whole;
}

static bool make_room(struct fetch *fetch)
{
    if (fetch->length < fetch->room)
        return true;
    size_t room = fetch->room ? fetch->room * 2 : 4096;
    uint8_t *data = realloc(fetch->data, room);
    if (!data)
        return false;
    fetch->data = data;
    fetch->room = room;
    return true;
}

static void receive(struct fetch *fetch)
{
    for (;;) {
        if (!make_room(fetch)) {
            try_again(fetch, "out of memory");
            return;
        }
        ssize_t got = recv(fetch->fd, fetch->data + fetch->length, fetch->room - fetch->length, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got < 0) {
            try_again(fetch, strerror(errno));
            return;
        }
        fetch->length += (size_t)got;
        if (judge(fetch, got == 0))
            return;
    }
}

static void on_ready(void *context, short events)
{
    struct fetch *fetch = context;

    (void)events;
    if (fetch->sent < fetch->request_length) {
        ssize_t sent =
            send(fetch->fd, fetch->request + fetch->sent, fetch->request_length - fetch->sent, MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            try_again(fetch, strerror(errno));
            return;
        }
        fetch->sent += sent > 0 ? (size_t)sent : 0;
        if (fetch->sent == fetch->request_length)
            loop_watch(fetch->fd, POLLIN, on_ready, fetch);
        return;
    }
    receive(fetch);
}

static size_t compose(struct fetch *fetch)
{
    static const char rest[] = "Host: " ADDRESS "\r\nConnection: close\r\n\r\n";
    char *out = fetch->request;
    const size_t room = sizeof fetch->request;

    fetch->with_token = fetch != &token && token_text[0];
    if (fetch == &token)
        return (size_t)snprintf(
            out, room, "PUT %s HTTP/1.0\r\n" TOKEN_HEADER "-ttl-seconds: %d\r\n%s", fetch->path, TOKEN_S, rest);
    if (fetch->with_token)
        return (size_t)snprintf(
            out, room, "GET %s HTTP/1.0\r\n" TOKEN_HEADER ": %s\r\n%s", fetch->path, token_text, rest);
    return (size_t)snprintf(out, room, "GET %s HTTP/1.0\r\n%s", fetch->path, rest);
}

static void begin_attempt(void *context)
{
    struct fetch *fetch = context;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(ADDRESS)};

    fetch->sent = fetch->length = 0;
    fetch->timer.fire = on_late;
    timer_start(&fetch->timer, ATTEMPT_MS);
    fetch->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fetch->fd < 0 || (connect(fetch->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) {
        try_again(fetch, strerror(errno));
        return;
    }
    fetch->waits_for_token = fetch != &token && !token.answered;
    if (!fetch->waits_for_token)
        send_request(fetch);
}

static void send_request(struct fetch *fetch)
{
    fetch->request_length = compose(fetch);
    loop_watch(fetch->fd, POLLOUT, on_ready, fetch);
}

static void on_late(void *context)
{
    try_again(context, "no answer");
}

static void begin(struct fetch *fetch)
{
    fetch->retry_ms = FIRST_RETRY_MS;
    fetch->timer.context = fetch;
    begin_attempt(fetch);
}

void metadata_start(void (*done)(const struct metadata *metadata))
{
    on_done = done;
    if (!token.answered)
        begin(&token);
    begin(&document);
    begin(&user_data);
}

void metadata_stop(void)
{
    forget(&document);
    forget(&user_data);
    if (!token.answered)
        forget_token();
}
