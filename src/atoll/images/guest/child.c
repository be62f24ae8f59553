/* Becoming another program after a fork. Effects: replaces the calling process. */
#include "child.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

/* File names without a directory, one per line. */
#define APPLETS "/lib/applets"

/* Makes busybox known by all its names. Done by the first that needs them, not at boot, where a few hundred
 * links cost more than the rest of the initial file system; a second time finds them there. */
void child_link_applets(void)
{
    char path[128] = "/bin/";
    char *name = path + strlen(path);
    FILE *list = fopen(APPLETS, "re");

    while (list && fgets(name, (int)(sizeof path - strlen("/bin/")), list)) {
        name[strcspn(name, "\n")] = 0;
        (void)!symlink("busybox", path);
    }
    if (list)
        fclose(list);
}

void child_exec(const char *const argv[])
{
    static const char *const ENVIRONMENT[] = {
        "PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/root", "USER=root", "SHELL=/bin/sh", "TERM=vt100", NULL,
    };
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)!chdir("/root");
    child_link_applets();
    execve(argv[0], (char *const *)argv, (char *const *)ENVIRONMENT);
    int why = errno;
    say("starting %s: %s", argv[0], strerror(why));
    _exit(why == ENOENT ? 127 : 126);
}
