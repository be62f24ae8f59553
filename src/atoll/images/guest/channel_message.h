/* What the host says on the channel: one order per line. Pure.
 *
 *   identity MAC NAME SEED CLOCK    be this machine, for good
 *   rehearse MAC NAME SEED CLOCK    be it until told to park, to have been through all of it once
 *   park                            forget the rehearsal and wait again
 *
 * The guest says `ready` when it waits for one, and `taken` when it is what it was told to be.
 *
 * MAC as 02:00:5e:00:00:01, NAME a host name, SEED 32 bytes in lower-case hexadecimal, CLOCK nanoseconds
 * since 1970. One blank between words, nothing else.
 */
#ifndef CHANNEL_MESSAGE_H
#define CHANNEL_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

enum { CHANNEL_SEED = 32, CHANNEL_NAME = 64, CHANNEL_MAX_LINE = 256 };

enum order_kind { ORDER_NONE, ORDER_IDENTITY, ORDER_REHEARSE, ORDER_PARK };

struct order {
    uint8_t mac[6];
    char name[CHANNEL_NAME]; /* terminated */
    uint8_t seed[CHANNEL_SEED];
    uint64_t clock_ns;
};

/* The kind of a line, without its newline; ORDER_NONE for one that is wrong in any way. Only the first two
 * kinds fill `order`. */
enum order_kind channel_parse(const uint8_t *line, size_t length, struct order *order);

#endif
