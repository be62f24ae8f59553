/* What host and guest say on the port over which commands are run. Pure: every length is checked here. */
#include "hands_message.h"

#include <string.h>

static uint16_t two(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t four(const uint8_t *at)
{
    return (uint32_t)two(at) << 16 | two(at + 2);
}

int hands_parse(const uint8_t *bytes, size_t length, struct hands_frame *frame)
{
    if (length && bytes[0] == HANDS_SKIP) {
        *frame = (struct hands_frame){.kind = HANDS_SKIP};
        return 1;
    }
    if (length < HANDS_HEAD)
        return 0;
    *frame = (struct hands_frame){bytes[0], two(bytes + 2), four(bytes + 4), bytes + HANDS_HEAD};
    if (bytes[1] || frame->size > HANDS_MOST)
        return -1;
    return length < HANDS_HEAD + frame->size ? 0 : (int)(HANDS_HEAD + frame->size);
}

void hands_head(uint8_t head[HANDS_HEAD], uint8_t kind, uint16_t session, uint32_t size)
{
    const uint8_t bytes[HANDS_HEAD] = {
        kind, 0, (uint8_t)(session >> 8), (uint8_t)session,
        (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size,
    };

    memcpy(head, bytes, sizeof bytes);
}

uint32_t hands_number(const struct hands_frame *frame)
{
    return frame->size == 4 ? four(frame->data) : 0;
}

bool hands_parse_start(const struct hands_frame *frame, struct hands_start *start)
{
    enum { FIXED = 10 };
    const uint8_t *at = frame->data;

    if (frame->size < FIXED)
        return false;
    *start = (struct hands_start){
        .rows = two(at), .columns = two(at + 2), .input = two(at + 4) & 1, .words = two(at + 6), .variables = two(at + 8),
    };
    if (!start->words || start->words > HANDS_WORDS || start->variables > HANDS_VARIABLES)
        return false;
    const char *text = (const char *)at + FIXED;
    size_t left = frame->size - FIXED;
    for (int i = 0; i < 2 + start->words + start->variables; i++) {
        const char *end = left ? memchr(text, 0, left) : NULL;

        if (!end)
            return false;
        if (i == 0)
            start->user = text;
        else if (i == 1)
            start->directory = text;
        else if (i == 2)
            start->first = text;
        left -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    return left == 0;
}
