/* The shell on the console. */
#ifndef CONSOLE_H
#define CONSOLE_H

#include <sys/types.h>

/* Waits for Enter on the console, then runs a shell there, and another when that ends. */
void console_start(void);

/* Tells that a child has ended; another's than the console's is ignored. */
void console_child_ended(pid_t pid);

#endif
