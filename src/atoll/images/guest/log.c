/* One line on the console per step. Effects: writes to standard error. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "loop.h"

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
    /* One write, so that the lines of a running script do not cut into ours. */
    (void)!write(STDERR_FILENO, line, length);
}
