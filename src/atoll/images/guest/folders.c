/* Folders of the host, each at its place in this guest.
 * Effects: reads the kernel's command line; a process that loads modules, makes directories and mounts.
 *
 *   atoll.folder=TAG:PATH       what the host calls it, and where it is to be
 *   atoll.folder=TAG:PATH:ro    only to be read
 *
 * Who serves a folder may be gone, and a mount waits for an answer: so another process waits, and the agent does not.
 */
#include "folders.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "startup.h"

/* Beside the list of those that every guest needs: there is none where the kernel is the host's. */
#define MODULES "/lib/modules/load-folders"
#define WORD "atoll.folder="

enum { PATIENCE_MS = 5000 };

static int pending = -1; /* closes when all is done */

/* The directory at a path, made where it lacks, and no link on the way; -1 when that cannot be. */
static int open_place(char *path)
{
    char *rest = path;
    int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    for (char *part = strtok_r(path, "/", &rest); part && at >= 0; part = strtok_r(NULL, "/", &rest)) {
        mkdirat(at, part, 0755);
        int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(at);
        at = next;
    }
    return at;
}

static void mount_folder(char *word)
{
    char *path = strchr(word, ':'), *options, target[64];

    if (!path)
        return;
    *path++ = 0;
    options = strchr(path, ':');
    if (options)
        *options++ = 0;
    unsigned long flags = MS_NOSUID | MS_NODEV | (options && !strcmp(options, "ro") ? MS_RDONLY : 0);
    char place[512];
    snprintf(place, sizeof place, "%s", path);
    int fd = open_place(place);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    if (fd < 0 || mount(word, target, "virtiofs", flags, NULL))
        say("folder %s at %s: %s", word, path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static bool read_words(char *words, size_t room)
{
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, words, room - 1) : 0;

    if (fd >= 0)
        close(fd);
    words[got > 0 ? got : 0] = 0;
    return strstr(words, WORD) && !access(MODULES, R_OK);
}

void folders_start(void)
{
    char words[4096], *rest = words;
    int ends[2];

    if (!read_words(words, sizeof words) || pipe2(ends, O_CLOEXEC))
        return;
    pid_t pid = fork();
    if (pid == 0) {
        startup_load_modules(MODULES);
        for (char *word = strtok_r(words, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
            if (!strncmp(word, WORD, strlen(WORD)))
                mount_folder(word + strlen(WORD));
        }
        _exit(0);
    }
    if (pid < 0)
        say("folders: %s", strerror(errno));
    close(ends[1]);
    pending = ends[0];
}

void folders_wait(void)
{
    struct pollfd done = {.fd = pending};

    if (pending < 0)
        return;
    if (poll(&done, 1, PATIENCE_MS) == 0)
        say("folders: not there yet; whoever serves them may be gone");
    close(pending);
    pending = -1;
}
