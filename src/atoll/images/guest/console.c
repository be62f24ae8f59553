/* A shell on the console, started when somebody presses Enter: an unused one costs time and memory.
 * Effects: the console's terminal, processes. */
#include "console.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "child.h"
#include "log.h"
#include "loop.h"

enum { SHORTEST_LIFE_MS = 1000 };

static struct {
    char path[64];
    int fd;
    pid_t shell;
    uint64_t started_ms;
} console = {.fd = -1};

/* /dev/console cannot be a controlling terminal, so there would be no job control: find what is behind it. */
static void find_terminal(void)
{
    char names[128];
    int fd = open("/sys/class/tty/console/active", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, names, sizeof names - 1) : 0;

    if (fd >= 0)
        close(fd);
    names[got > 0 ? got : 0] = 0;
    names[strcspn(names, "\n")] = 0;
    const char *last = strrchr(names, ' ');
    last = last ? last + 1 : names;
    snprintf(console.path, sizeof console.path, "/dev/%.48s", *last ? last : "console");
    /* A container sees the name of the host's; its own console is a terminal by itself. */
    if (access(console.path, F_OK))
        snprintf(console.path, sizeof console.path, "/dev/console");
}

static void forget_terminal(void)
{
    loop_close(console.fd);
    console.fd = -1;
}

static _Noreturn void become_shell(void)
{
    const char *const argv[] = {"/bin/sh", "-l", NULL};
    int fd = open(console.path, O_RDWR | O_NOCTTY | O_CLOEXEC);

    setsid();
    ioctl(fd, TIOCSCTTY, 1);
    for (int standard = STDIN_FILENO; standard <= STDERR_FILENO; standard++)
        dup2(fd, standard);
    child_exec(argv);
}

static void start_shell(void)
{
    forget_terminal();
    console.started_ms = now_ms();
    console.shell = fork();
    if (console.shell == 0)
        become_shell();
    if (console.shell < 0)
        say("starting a shell: %s", strerror(errno));
}

/* The terminal is readable once a whole line was typed. The line stays there, for the shell to read. */
static void on_input(void *context, short events)
{
    (void)context;
    if (events & (POLLERR | POLLHUP | POLLNVAL))
        forget_terminal();
    else
        start_shell();
}

static void wait_for_enter(void)
{
    console.fd = open(console.path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (console.fd < 0 || !isatty(console.fd) || !loop_watch(console.fd, POLLIN, on_input, NULL))
        forget_terminal();
}

void console_start(void)
{
    find_terminal();
    wait_for_enter();
}

void console_child_ended(pid_t pid)
{
    if (pid != console.shell)
        return;
    console.shell = 0;
    /* One that cannot run must not be started over and over. */
    if (now_ms() - console.started_ms < SHORTEST_LIFE_MS) {
        wait_for_enter();
        tcflush(console.fd, TCIFLUSH);
    } else {
        start_shell();
    }
}
