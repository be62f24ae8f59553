/* What the host says on the channel. Pure: every length is checked here. */
#include "channel_message.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* The rest of a line. */
struct text {
    const uint8_t *at;
    size_t left;
};

/* The next word, up to a blank, which is taken too, or the end; false when it is empty or a blank ends the line. */
static bool take_word(struct text *text, struct text *word)
{
    const uint8_t *blank = text->left ? memchr(text->at, ' ', text->left) : NULL;

    *word = (struct text){text->at, blank ? (size_t)(blank - text->at) : text->left};
    size_t taken = word->left + (blank != NULL);
    text->at += taken;
    text->left -= taken;
    return word->left > 0 && !(blank && text->left == 0);
}

static bool is(const struct text *word, const char *what)
{
    return word->left == strlen(what) && memcmp(word->at, what, word->left) == 0;
}

static int hex_digit(uint8_t character)
{
    if (character >= '0' && character <= '9')
        return character - '0';
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

/* Pairs of digits, with `separator` between them unless it is 0. */
static bool read_hex(const struct text *word, uint8_t separator, uint8_t *out, size_t count)
{
    size_t step = separator ? 3 : 2;

    if (word->left != count * step - (separator ? 1 : 0))
        return false;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *pair = word->at + i * step;
        int high = hex_digit(pair[0]), low = hex_digit(pair[1]);

        if (high < 0 || low < 0 || (separator && i + 1 < count && pair[2] != separator))
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool read_name(const struct text *word, char *name)
{
    if (word->left >= CHANNEL_NAME)
        return false;
    for (size_t i = 0; i < word->left; i++) {
        if (!isalnum(word->at[i]) && word->at[i] != '-' && word->at[i] != '.')
            return false;
    }
    memcpy(name, word->at, word->left);
    name[word->left] = 0;
    return true;
}

static bool read_number(const struct text *word, uint64_t *number)
{
    *number = 0;
    for (size_t i = 0; i < word->left; i++) {
        if (!isdigit(word->at[i]) || *number > (UINT64_MAX - 9) / 10)
            return false;
        *number = *number * 10 + (uint64_t)(word->at[i] - '0');
    }
    return true;
}

static bool read_order(struct text *rest, struct order *order)
{
    struct text mac, name, seed, clock;

    /* Of four words none but the last may end the line. */
    return take_word(rest, &mac) && rest->left && take_word(rest, &name) && rest->left && take_word(rest, &seed)
           && rest->left && take_word(rest, &clock) && !rest->left && read_hex(&mac, ':', order->mac, 6)
           && read_name(&name, order->name) && read_hex(&seed, 0, order->seed, CHANNEL_SEED)
           && read_number(&clock, &order->clock_ns);
}

enum order_kind channel_parse(const uint8_t *line, size_t length, struct order *order)
{
    struct text rest = {line, length}, kind;

    memset(order, 0, sizeof *order);
    if (length > CHANNEL_MAX_LINE || !take_word(&rest, &kind))
        return ORDER_NONE;
    if (is(&kind, "park"))
        return rest.left ? ORDER_NONE : ORDER_PARK;
    if (is(&kind, "identity") && read_order(&rest, order))
        return ORDER_IDENTITY;
    if (is(&kind, "rehearse") && read_order(&rest, order))
        return ORDER_REHEARSE;
    memset(order, 0, sizeof *order);
    return ORDER_NONE;
}
