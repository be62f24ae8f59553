/* User data that is a script. Effects: writes it to /run, starts it with its output on the console. */
#include "script.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "child.h"
#include "log.h"

#define PATH "/run/user-data"

static bool write_script(const uint8_t *text, size_t length)
{
    int fd = open(PATH, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    bool written = fd >= 0;

    while (written && length) {
        ssize_t part = write(fd, text, length);

        written = part > 0;
        if (written) {
            text += part;
            length -= (size_t)part;
        }
    }
    if (!written)
        say("writing %s: %s", PATH, strerror(errno));
    if (fd >= 0)
        close(fd);
    return written;
}

static _Noreturn void become_script(void)
{
    const char *const argv[] = {PATH, NULL};
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setsid();
    dup2(nothing, STDIN_FILENO);
    child_exec(argv);
}

pid_t script_start(const uint8_t *user_data, size_t length)
{
    if (length < 2 || memcmp(user_data, "#!", 2) || !write_script(user_data, length))
        return 0;
    pid_t pid = fork();
    if (pid == 0)
        become_script();
    if (pid < 0) {
        say("starting the user data: %s", strerror(errno));
        return 0;
    }
    say("user data: running as process %d", (int)pid);
    return pid;
}
