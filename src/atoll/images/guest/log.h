/* One line on the console per step, with the seconds since boot.
 *
 * A serial line is written a byte at a time, and a guest that somebody waits for has better things to do: it may hold
 * its lines until it is done, or for LOG_HOLD_MS at most. They carry the time at which they were said.
 */
#ifndef LOG_H
#define LOG_H

enum { LOG_HOLD_MS = 200 };

void log_hold(void);
void log_release(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
