/* The private line between the host and a guest that waits for its identity. Effects: the second serial port.
 *
 * The terminal assembles lines and cuts what is too long, so each read is one order.
 */
#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"

#define LINE "/dev/ttyS1"

static struct {
    int fd;
    void (*told)(enum order_kind kind, const struct order *order);
} channel = {.fd = -1};

static bool asked_to_wait(void)
{
    char words[4096];
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, words, sizeof words - 1) : 0;
    char *rest = words;

    if (fd >= 0)
        close(fd);
    words[got > 0 ? got : 0] = 0;
    for (char *word = strtok_r(words, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        if (!strcmp(word, "atoll.wait"))
            return true;
    }
    return false;
}

/* Nothing of the line's bytes has a meaning but the end of a line; fast, because the port waits for four
 * characters' time before it passes the last ones on. */
static bool prepare(int fd)
{
    struct termios settings;

    if (tcgetattr(fd, &settings))
        return false;
    cfmakeraw(&settings);
    settings.c_lflag |= ICANON;
    settings.c_cflag |= CLOCAL | CREAD;
    for (int i = 0; i < NCCS; i++)
        settings.c_cc[i] = 0;
    cfsetispeed(&settings, B115200);
    cfsetospeed(&settings, B115200);
    return tcsetattr(fd, TCSANOW, &settings) == 0;
}

static void on_line(void *context, short events)
{
    uint8_t line[CHANNEL_MAX_LINE + 2];
    struct order order;
    ssize_t got = read(channel.fd, line, sizeof line);

    (void)context;
    (void)events;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        channel_close();
        return;
    }
    size_t length = (size_t)got - (line[got - 1] == '\n');
    enum order_kind kind = channel_parse(line, length, &order);
    if (kind == ORDER_NONE)
        say("channel: not an order");
    else
        channel.told(kind, &order);
    explicit_bzero(line, sizeof line);
    explicit_bzero(&order, sizeof order);
}

bool channel_open(void (*told)(enum order_kind kind, const struct order *order))
{
    if (!asked_to_wait())
        return false;
    channel.told = told;
    channel.fd = open(LINE, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (channel.fd < 0 || !prepare(channel.fd) || !loop_watch(channel.fd, POLLIN, on_line, NULL)) {
        say("channel: %s: %s", LINE, strerror(errno));
        channel_close();
        return false;
    }
    return true;
}

static void tell(const char *line)
{
    if (write(channel.fd, line, strlen(line)) != (ssize_t)strlen(line))
        say("channel: writing: %s", strerror(errno));
}

void channel_ready(void)
{
    tell("ready\n");
}

void channel_taken(void)
{
    tell("taken\n");
}

void channel_close(void)
{
    loop_close(channel.fd);
    channel.fd = -1;
}
