/* User data that is a script. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Runs it in a process of its own; returns the pid, or 0 when it is no script or cannot be started. */
pid_t script_start(const uint8_t *user_data, size_t length);

#endif
