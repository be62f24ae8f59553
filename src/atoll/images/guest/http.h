/* HTTP/1 heads, as a client and as a server reads them. Pure. */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the head with its empty line, or 0 while that has not come. */
size_t http_head_length(const uint8_t *data, size_t length);

struct http_response {
    int status;
    size_t body_at;
    bool sized; /* the server said how long the body is */
    size_t body_length;
};

/* False while the head is incomplete; a status of 0 when it is not HTTP. */
bool http_parse_response(const uint8_t *data, size_t length, struct http_response *response);

/* Copies a body that is one word of visible ASCII, which a header can hold, terminated; a newline after it is left out.
 * False, and nothing copied, when it is anything else or does not fit. */
bool http_take_word(const uint8_t *body, size_t length, char *out, size_t room);

/* The status with which to answer a whole request head: 200, 400, 404 or 405. */
int http_judge_request(const uint8_t *head, size_t length);

#endif
