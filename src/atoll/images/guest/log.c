/* One line on the console per step. Effects: writes to standard error, a timer. */
#include "log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loop.h"

static char held[1024];
static size_t held_length;
static bool holding;
static struct timer hold_timer;

static void on_held_enough(void *context)
{
    (void)context;
    log_release();
}

void log_hold(void)
{
    holding = true;
    hold_timer.fire = on_held_enough;
    timer_start(&hold_timer, LOG_HOLD_MS);
}

void log_release(void)
{
    holding = false;
    timer_stop(&hold_timer);
    if (held_length)
        (void)!write(STDERR_FILENO, held, held_length);
    held_length = 0;
}

void say(const char *format, ...)
{
    char line[256];
    va_list arguments;
    /* In whole numbers: formatting a fraction is much code, which an emulated guest pays for before it answers. */
    unsigned long long now = now_ms();
    size_t length = (size_t)snprintf(line, sizeof line, "[%5llu.%03llu] atoll: ", now / 1000, now % 1000);

    va_start(arguments, format);
    int added = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (added > 0)
        length += (size_t)added;
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (holding && length <= sizeof held - held_length) {
        memcpy(held + held_length, line, length);
        held_length += length;
        return;
    }
    log_release();
    /* One write, so that the lines of a running script do not cut into ours. */
    (void)!write(STDERR_FILENO, line, length);
}
