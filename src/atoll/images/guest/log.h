/* One line on the console per step, with the seconds since boot. */
#ifndef LOG_H
#define LOG_H

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
