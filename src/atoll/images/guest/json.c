/* The little JSON that the agent reads and writes. Pure. */
#include "json.h"

#include <stdio.h>
#include <string.h>

/* Past the string that begins at `at` (after its quote): the index of its closing quote, or `length`. */
static size_t string_end(const char *text, size_t length, size_t at)
{
    while (at < length && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < length ? at : length;
}

static size_t skip_blanks(const char *text, size_t length, size_t at)
{
    while (at < length && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    return at;
}

static bool copy_plain(const char *value, size_t length, char *out, size_t room)
{
    if (length >= room)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (value[i] == '\\' || (unsigned char)value[i] < 0x20 || value[i] == 0x7f)
            return false;
    }
    memcpy(out, value, length);
    out[length] = 0;
    return true;
}

bool json_member(const char *text, size_t length, const char *key, char *out, size_t room)
{
    int depth = 0;

    for (size_t at = 0; at < length; at++) {
        if (text[at] == '{' || text[at] == '[')
            depth++;
        else if (text[at] == '}' || text[at] == ']')
            depth--;
        if (text[at] != '"')
            continue;

        size_t begin = at + 1;
        size_t end = string_end(text, length, begin);
        size_t next = skip_blanks(text, length, end + 1);

        at = end;
        /* Only a key is followed by a colon. */
        if (next >= length || text[next] != ':')
            continue;
        size_t value = skip_blanks(text, length, next + 1);
        if (depth != 1 || end - begin != strlen(key) || memcmp(text + begin, key, end - begin))
            continue;
        if (value >= length || text[value] != '"')
            return false;
        size_t value_end = string_end(text, length, value + 1);
        return value_end < length && copy_plain(text + value + 1, value_end - value - 1, out, room);
    }
    return false;
}

size_t json_quote(const char *value, char *out, size_t room)
{
    size_t length = 0;

    if (!value)
        return (size_t)snprintf(out, room, "null");
    out[length++] = '"';
    for (; *value && length + 8 < room; value++) {
        unsigned char c = (unsigned char)*value;

        if (c == '"' || c == '\\') {
            out[length++] = '\\';
            out[length++] = (char)c;
        } else if (c < 0x20 || c >= 0x7f) {
            length += (size_t)snprintf(out + length, room - length, "\\u%04x", c);
        } else {
            out[length++] = (char)c;
        }
    }
    out[length++] = '"';
    out[length] = 0;
    return length;
}
