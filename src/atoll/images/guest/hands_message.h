/* What host and guest say on the port over which commands are run. Pure.
 *
 * Frames: one byte kind, one byte 0, two bytes session, four bytes size, all with the highest byte first; then that
 * many bytes. A byte 0 in place of a kind is skipped: with enough of them, whoever connects anew puts an end to what
 * an earlier one left half said.
 *
 *   host   HELLO nonce          forget all that there was; answered with the same
 *          START                run a command in a session that is free
 *          INPUT data           at most HANDS_WINDOW bytes that were not taken yet
 *          END_INPUT
 *          RESIZE rows columns
 *          SIGNAL number
 *          CREDIT size          so much more output may be sent, beyond the first HANDS_CREDIT
 *          HANG_UP              nobody wants it any more: SIGHUP, and soon SIGKILL
 *   guest  OUTPUT, ERRORS data
 *          TAKEN size           of input
 *          EXIT status          the session is free again
 */
#ifndef HANDS_MESSAGE_H
#define HANDS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HANDS_HEAD = 8,
    HANDS_MOST = 32768, /* bytes after the head */
    HANDS_WINDOW = 32768,
    HANDS_CREDIT = 131072,
    HANDS_NONCE = 16,
    HANDS_WORDS = 1024,
    HANDS_VARIABLES = 512,
};

enum hands_kind {
    HANDS_SKIP,
    HANDS_HELLO,
    HANDS_START,
    HANDS_INPUT,
    HANDS_END_INPUT,
    HANDS_RESIZE,
    HANDS_SIGNAL,
    HANDS_GIVE_CREDIT,
    HANDS_HANG_UP,
    HANDS_OUTPUT = 16,
    HANDS_ERRORS,
    HANDS_TAKEN,
    HANDS_EXIT,
};

struct hands_frame {
    uint8_t kind;
    uint16_t session;
    uint32_t size;
    const uint8_t *data;
};

/* How many bytes the frame at the front takes: 0 when it is not whole yet, -1 when it is none. A byte to be skipped is
 * a frame of one. */
int hands_parse(const uint8_t *bytes, size_t length, struct hands_frame *frame);

void hands_head(uint8_t head[HANDS_HEAD], uint8_t kind, uint16_t session, uint32_t size);
uint32_t hands_number(const struct hands_frame *frame);

/* START: rows, columns, flags (1: has input), how many words and variables, two bytes each; then the user, the
 * directory, the words and the variables, each with a zero byte at its end. No rows: no terminal. */
struct hands_start {
    uint16_t rows, columns;
    bool input;
    uint16_t words, variables;
    const char *user, *directory;
    const char *first; /* the first word; each of the others follows the end of the one before */
};

bool hands_parse_start(const struct hands_frame *frame, struct hands_start *start);

#endif
