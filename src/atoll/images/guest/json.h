/* The little JSON that the agent reads and writes. Pure. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Copies the string that the outermost object has under `key`, terminated. False, and nothing copied, when
 * there is none, it does not fit, or it holds escapes or control characters (no identifier does). */
bool json_member(const char *text, size_t length, const char *key, char *out, size_t room);

/* Writes `value` as a JSON string, or null for NULL, terminated; returns its length. `room` must hold
 * six bytes for each of the value's and three more. */
size_t json_quote(const char *value, char *out, size_t room);

#endif
