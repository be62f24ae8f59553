/* What a kernel without a userland needs first. */
#ifndef STARTUP_H
#define STARTUP_H

#include <stdbool.h>

/* File systems, the console as standard streams. */
void startup_mount(void);

/* Loads the next module of the list; false when there is none left. */
bool startup_load_module(void);

/* Loads all modules of a list. */
void startup_load_modules(const char *list);

#endif
