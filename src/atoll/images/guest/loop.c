/* One poll loop. Effects: waits in poll, calls back. */
#include "loop.h"

#include <poll.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* Far more than the agent opens: connections are bounded in server.c. */
enum { MAX_FD = 128, LONGEST_WAIT_MS = 3600 * 1000, MAX_CLOSING = 4, CLOSE_AFTER_MS = 500 };

static struct watch {
    short events;
    ready_fn ready;
    void *context;
} watches[MAX_FD];

static struct timer *timers;

uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool loop_watch(int fd, short events, ready_fn ready, void *context)
{
    if (fd < 0 || fd >= MAX_FD)
        return false;
    watches[fd] = (struct watch){events, ready, context};
    return true;
}

void loop_forget(int fd)
{
    if (fd >= 0 && fd < MAX_FD)
        watches[fd].ready = NULL;
}

void loop_close(int fd)
{
    if (fd < 0)
        return;
    loop_forget(fd);
    close(fd);
}

static struct {
    int fds[MAX_CLOSING];
    int count;
    struct timer timer;
} closing;

static void close_all(void *context)
{
    (void)context;
    while (closing.count)
        close(closing.fds[--closing.count]);
}

void loop_close_later(int fd)
{
    if (fd < 0)
        return;
    loop_forget(fd);
    if (closing.count == MAX_CLOSING)
        close_all(NULL);
    closing.fds[closing.count++] = fd;
    closing.timer.fire = close_all;
    timer_start(&closing.timer, CLOSE_AFTER_MS);
}

void timer_stop(struct timer *timer)
{
    if (!timer->armed)
        return;
    for (struct timer **link = &timers; *link; link = &(*link)->next) {
        if (*link == timer) {
            *link = timer->next;
            break;
        }
    }
    timer->armed = false;
}

void timer_start(struct timer *timer, uint64_t after_ms)
{
    struct timer **link = &timers;

    timer_stop(timer);
    timer->due_ms = now_ms() + after_ms;
    timer->armed = true;
    while (*link && (*link)->due_ms <= timer->due_ms)
        link = &(*link)->next;
    timer->next = *link;
    *link = timer;
}

/* Only timers that are due on entry: one that starts itself again with 0 ms must not starve descriptors. */
static void fire_due(void)
{
    uint64_t now = now_ms();

    for (int fired = 0; timers && timers->due_ms <= now && fired < MAX_FD; fired++) {
        struct timer *timer = timers;

        timer_stop(timer);
        timer->fire(timer->context);
    }
}

static int wait_ms(void)
{
    uint64_t now = now_ms();

    if (!timers)
        return -1;
    if (timers->due_ms <= now)
        return 0;
    uint64_t left = timers->due_ms - now;
    return left < LONGEST_WAIT_MS ? (int)left : LONGEST_WAIT_MS;
}

void loop_step(void)
{
    struct pollfd polled[MAX_FD];
    nfds_t count = 0;

    for (int fd = 0; fd < MAX_FD; fd++) {
        if (watches[fd].ready)
            polled[count++] = (struct pollfd){.fd = fd, .events = watches[fd].events};
    }
    if (poll(polled, count, wait_ms()) > 0) {
        for (nfds_t i = 0; i < count; i++) {
            struct watch watch = watches[polled[i].fd];

            /* An earlier callback of this round may have closed it. */
            if (polled[i].revents && watch.ready)
                watch.ready(watch.context, polled[i].revents);
        }
    }
    fire_due();
}
