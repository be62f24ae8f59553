/* The power button and the end of the machine. Effects: generic netlink; kills every process, reboots.
 *
 * The kernel tells of ACPI events by generic netlink: one socket, where /dev/input would take another module
 * and a search for the right device. The structures are the kernel's (linux/netlink.h, linux/genetlink.h,
 * linux/acpi.h of the kernel's sources), which a musl tool chain does not bring.
 */
#include "power.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "netlink_message.h"

enum {
    NETLINK_PROTOCOL_GENERIC = 16,
    SOCKET_LEVEL_NETLINK = 270,
    ADD_MEMBERSHIP = 1,
    MESSAGE_REQUEST = 1,
    FAMILY_CONTROL = 16,
    COMMAND_GET_FAMILY = 3,
    ATTRIBUTE_FAMILY_NAME = 2,
    ATTRIBUTE_GROUPS = 7,
    ATTRIBUTE_GROUP_ID = 2,
    ATTRIBUTE_ACPI_EVENT = 1,
    GRACE_MS = 1000,
};

struct message {
    uint32_t length;
    uint16_t type;
    uint16_t flags;
    uint32_t sequence;
    uint32_t port;
    uint8_t command;
    uint8_t version;
    uint16_t reserved;
};

static int events_fd = -1;
static void (*button_pressed)(void);

/* The attributes of a received message, or NULL when it is malformed. */
static const uint8_t *payload(const uint8_t *data, ssize_t got, size_t *length)
{
    struct message head;

    if (got < (ssize_t)sizeof head)
        return NULL;
    memcpy(&head, data, sizeof head);
    if (head.length < sizeof head || head.length > (size_t)got)
        return NULL;
    *length = head.length - sizeof head;
    return data + sizeof head;
}

/* The number of the multicast group on which the kernel tells of ACPI events, or 0. */
static uint32_t find_group(int fd)
{
    static const char family[] = "acpi_event";
    struct {
        struct message head;
        struct netlink_attribute attribute;
        char name[(sizeof family + 3) & ~3u];
    } request = {
        .head = {
            .length = sizeof request, .type = FAMILY_CONTROL, .flags = MESSAGE_REQUEST,
            .command = COMMAND_GET_FAMILY, .version = 1,
        },
        .attribute = {.length = sizeof(struct netlink_attribute) + sizeof family, .type = ATTRIBUTE_FAMILY_NAME},
    };
    uint8_t answer[4096];
    size_t length = 0;
    uint32_t group = 0;

    memcpy(request.name, family, sizeof family);
    if (send(fd, &request, sizeof request, 0) < 0)
        return 0;
    /* The kernel has answered by the time that send returns, so this does not wait. */
    const uint8_t *found = payload(answer, recv(fd, answer, sizeof answer, 0), &length);
    if (found)
        found = netlink_find(found, length, ATTRIBUTE_GROUPS, &length);
    if (found)
        found = netlink_find(found, length, 1, &length); /* the list's first element; the family has one group */
    if (found)
        found = netlink_find(found, length, ATTRIBUTE_GROUP_ID, &length);
    if (found && length == sizeof group)
        memcpy(&group, found, sizeof group);
    return group;
}

static void on_event(void *context, short events)
{
    static const char button[] = "button/power";
    uint8_t data[1024];
    size_t length = 0;

    (void)context;
    (void)events;
    const uint8_t *event = payload(data, recv(events_fd, data, sizeof data, 0), &length);
    if (event)
        event = netlink_find(event, length, ATTRIBUTE_ACPI_EVENT, &length);
    /* The event begins with the class of the device. */
    if (event && length >= sizeof button && memcmp(event, button, sizeof button - 1) == 0)
        button_pressed();
}

void power_watch_button(void (*pressed)(void))
{
    button_pressed = pressed;
    events_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_PROTOCOL_GENERIC);
    if (events_fd < 0)
        return;
    uint32_t group = find_group(events_fd);
    /* A machine without ACPI, or a container, has no button: nothing to say. */
    if (!group || setsockopt(events_fd, SOCKET_LEVEL_NETLINK, ADD_MEMBERSHIP, &group, sizeof group)) {
        loop_close(events_fd);
        return;
    }
    loop_watch(events_fd, POLLIN, on_event, NULL);
}

static bool children_left(void)
{
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid == 0)
            return true;
        if (pid < 0)
            return errno != ECHILD;
    }
}

static void wait_for_children(uint64_t until_ms)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (children_left() && now_ms() < until_ms) {
        uint64_t left = until_ms - now_ms();
        struct timespec wait = {(time_t)(left / 1000), (long)(left % 1000) * 1000000};

        sigtimedwait(&child, NULL, &wait);
    }
}

void power_end(enum end end)
{
    log_release();
    say(end == END_REBOOT ? "rebooting" : "powering off");
    kill(-1, SIGTERM);
    /* A shell ignores SIGTERM, and takes SIGHUP as the end of its terminal. */
    kill(-1, SIGHUP);
    wait_for_children(now_ms() + GRACE_MS);
    kill(-1, SIGKILL);
    sync();
    reboot(end == END_REBOOT ? RB_AUTOBOOT : RB_POWER_OFF);
    /* In a container that has no right to it, the end of its first process is the end of all. */
    if (errno == EPERM)
        _exit(0);
    say("ending the machine: %s", strerror(errno));
}
