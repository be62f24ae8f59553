/* One line on the console per step. Effects: writes to standard error. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

double uptime_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void say(const char *format, ...)
{
    char line[256];
    va_list arguments;
    size_t length = (size_t)snprintf(line, sizeof line, "[%9.3f] atoll: ", uptime_s());

    va_start(arguments, format);
    int added = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (added > 0)
        length += (size_t)added;
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that the lines of a running script do not cut into ours. */
    (void)!write(STDERR_FILENO, line, length);
}
