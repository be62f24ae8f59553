/* HTTP/1 heads. Pure: every length that came from outside is checked here. */
#include "http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

size_t http_head_length(const uint8_t *data, size_t length)
{
    for (size_t i = 0; i + 1 < length; i++) {
        if (data[i] != '\n')
            continue;
        if (data[i + 1] == '\n')
            return i + 2;
        if (i + 2 < length && data[i + 1] == '\r' && data[i + 2] == '\n')
            return i + 3;
    }
    return 0;
}

/* Digits up to a blank or the end of the line; false for anything else, or more than fits. */
static bool take_size(const uint8_t *at, const uint8_t *end, size_t *size)
{
    bool any = false;

    *size = 0;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    for (; at < end && isdigit(*at); at++, any = true) {
        if (*size > (SIZE_MAX - 9) / 10)
            return false;
        *size = *size * 10 + (size_t)(*at - '0');
    }
    return any && (at == end || *at == '\r' || *at == '\n' || *at == ' ');
}

static void take_headers(const uint8_t *head, size_t length, struct http_response *response)
{
    static const char name[] = "\ncontent-length:";
    const size_t name_length = sizeof name - 1;

    for (size_t i = 0; i + name_length < length; i++) {
        if (strncasecmp((const char *)head + i, name, name_length))
            continue;
        response->sized = take_size(head + i + name_length, head + length, &response->body_length);
        if (!response->sized)
            response->status = 0;
        return;
    }
}

bool http_parse_response(const uint8_t *data, size_t length, struct http_response *response)
{
    size_t head = http_head_length(data, length);

    memset(response, 0, sizeof *response);
    if (!head)
        return false;
    response->body_at = head;
    /* HTTP/1.x NNN */
    if (head < 13 || memcmp(data, "HTTP/1.", 7) || data[8] != ' ' || !isdigit(data[9]) || !isdigit(data[10])
        || !isdigit(data[11]))
        return true;
    response->status = (data[9] - '0') * 100 + (data[10] - '0') * 10 + (data[11] - '0');
    take_headers(data, head, response);
    return true;
}

bool http_take_word(const uint8_t *body, size_t length, char *out, size_t room)
{
    while (length && (body[length - 1] == '\n' || body[length - 1] == '\r'))
        length--;
    if (!length || length >= room)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (body[i] <= ' ' || body[i] > '~')
            return false;
    }
    memcpy(out, body, length);
    out[length] = 0;
    return true;
}

int http_judge_request(const uint8_t *head, size_t length)
{
    const uint8_t *end = memchr(head, '\n', length);
    size_t line = end ? (size_t)(end - head) : 0;
    const uint8_t *path = line ? memchr(head, ' ', line) : NULL;

    if (!path)
        return 400;
    path++;
    const uint8_t *version = memchr(path, ' ', line - (size_t)(path - head));
    if (!version || (size_t)(head + line - version) < 9 || memcmp(version, " HTTP/1.", 8))
        return 400;
    if (memcmp(head, "GET ", 4))
        return 405;
    return version - path == 1 && *path == '/' ? 200 : 404;
}
