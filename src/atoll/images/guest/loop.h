/* One poll loop: descriptors to watch and timers to fire. Nothing in the agent waits anywhere else. */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stdint.h>

typedef void (*ready_fn)(void *context, short events);

/* Calls `ready` when `fd` has one of `events`. A second call for the same fd replaces the first. Callbacks
 * must bear being called with nothing to do. False when the descriptor is beyond what the loop can hold. */
bool loop_watch(int fd, short events, ready_fn ready, void *context);

/* Stops watching and closes. Minus one is ignored. */
void loop_close(int fd);
void loop_forget(int fd);

/* Stops watching now, and closes when nobody waits: the end of a packet socket takes the kernel milliseconds. */
void loop_close_later(int fd);

struct timer {
    void (*fire)(void *context);
    void *context;
    uint64_t due_ms;
    struct timer *next;
    bool armed;
};

/* Fires once, after `after_ms`. Starting a timer again moves it. */
void timer_start(struct timer *timer, uint64_t after_ms);
void timer_stop(struct timer *timer);

uint64_t now_ms(void);
void loop_step(void);

#endif
