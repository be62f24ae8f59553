/* Becoming another program after a fork. */
#ifndef CHILD_H
#define CHILD_H

/* Makes busybox known by all its names, for whoever needs them first. */
void child_link_applets(void);

/* With default signals and the environment that programs of this guest get. Keeps the standard streams. */
_Noreturn void child_exec(const char *const argv[]);

#endif
