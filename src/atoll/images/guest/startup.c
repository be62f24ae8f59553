/* What a kernel without a userland needs first. Effects: mounts, modules, standard streams.
 *
 * All of it may fail: in a container somebody else has done it already, and has chosen what we may see.
 */
#include "startup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

/* File names, one per line, each after those that it depends on. */
#define MODULES "/lib/modules/load"

/* Whether something is mounted there: its device is another than that of the directory above. */
static bool is_mounted(const char *where)
{
    char above[64];
    struct stat here, there;

    snprintf(above, sizeof above, "%s/..", where);
    return !stat(where, &here) && !stat(above, &there) && here.st_dev != there.st_dev;
}

static void mount_on(const char *type, const char *where, unsigned long flags, const char *options)
{
    if (is_mounted(where))
        return;
    mkdir(where, 0755);
    mount(type, where, type, flags, options);
}

void startup_mount(void)
{
    mount_on("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
    mount_on("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_on("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_on("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755");
    mount_on("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "mode=0620,ptmxmode=0666");

    int fd = open("/dev/console", O_RDWR | O_NOCTTY);
    for (int standard = STDIN_FILENO; fd >= 0 && standard <= STDERR_FILENO; standard++)
        dup2(fd, standard);
    if (fd > STDERR_FILENO)
        close(fd);
    /* Who starts containers makes the console our terminal, and the shell could not have it then. */
    ioctl(STDIN_FILENO, TIOCNOTTY);
}

static void load_module(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
        say("loading %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static bool load_next(FILE *list)
{
    char path[256];

    if (!list || !fgets(path, sizeof path, list))
        return false;
    path[strcspn(path, "\n")] = 0;
    load_module(path);
    return true;
}

bool startup_load_module(void)
{
    static FILE *list;
    static bool ended;

    if (!list && !ended)
        list = fopen(MODULES, "re");
    if (load_next(list))
        return true;
    if (list)
        fclose(list);
    list = NULL;
    ended = true;
    return false;
}

void startup_load_modules(const char *path)
{
    FILE *list = fopen(path, "re");

    while (load_next(list))
        ;
    if (list)
        fclose(list);
}
