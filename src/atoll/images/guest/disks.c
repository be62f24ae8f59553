/* Disks by name, and file systems that grow with them.
 * Effects: links below /dev/disk, a netlink socket; the ioctl of ext4 that makes a mounted file system larger.
 *
 * A disk has the name of its volume as its serial number. The links are those that udev makes elsewhere:
 *
 *   /dev/disk/by-id/virtio-data        -> ../../vda
 *   /dev/disk/by-id/virtio-data-part1  -> ../../vda1
 */
#include "disks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"

/* linux/netlink.h, linux/fs.h and fs/ext4/ext4.h of the kernel's sources, which a musl tool chain does not bring. */
enum { NETLINK_PROTOCOL_UEVENT = 15, FROM_THE_KERNEL = 1 };
#define BLOCK_GET_SIZE _IOR(0x12, 114, size_t)
#define EXT4_RESIZE _IOW('f', 16, uint64_t)

#define LINKS "/dev/disk/by-id"
#define OURS "virtio-"

struct uevent_address {
    unsigned short family;
    unsigned short pad;
    uint32_t port;
    uint32_t groups;
};

static int events_fd = -1;

/* The name of a volume; empty where a disk has none that can be part of a path. */
static void read_serial(const char *disk, char serial[32])
{
    char path[300];

    serial[0] = 0;
    snprintf(path, sizeof path, "/sys/block/%s/serial", disk);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (fgets(serial, 32, file))
        serial[strcspn(serial, "\n")] = 0;
    fclose(file);
    if (strchr(serial, '/'))
        serial[0] = 0;
}

/* In a container the host's disks can be seen, but there are no devices of them. */
static bool is_device(const char *name)
{
    char path[300];
    struct stat found;

    snprintf(path, sizeof path, "/dev/%s", name);
    return !stat(path, &found) && S_ISBLK(found.st_mode);
}

static void link_to(const char *device, const char *serial, const char *part)
{
    char path[300], target[300], now[300];

    if (!is_device(device))
        return;
    snprintf(path, sizeof path, LINKS "/" OURS "%s%s", serial, part);
    snprintf(target, sizeof target, "../../%s", device);
    ssize_t length = readlink(path, now, sizeof now - 1);
    if (length > 0) {
        now[length] = 0;
        if (!strcmp(now, target))
            return;
        unlink(path);
    }
    mkdir("/dev/disk", 0755);
    mkdir(LINKS, 0755);
    if (symlink(target, path))
        say("making %s: %s", path, strerror(errno));
}

static void link_disk(const char *disk)
{
    char serial[32], path[300];

    read_serial(disk, serial);
    if (!serial[0])
        return;
    link_to(disk, serial, "");
    snprintf(path, sizeof path, "/sys/block/%s", disk);
    DIR *parts = opendir(path);
    for (struct dirent *each; parts && (each = readdir(parts));) {
        size_t length = strlen(disk);
        char part[32];

        if (strncmp(each->d_name, disk, length) || !each->d_name[length])
            continue;
        snprintf(part, sizeof part, "-part%.20s", each->d_name + length);
        link_to(each->d_name, serial, part);
    }
    if (parts)
        closedir(parts);
}

static void forget_what_is_gone(void)
{
    DIR *links = opendir(LINKS);
    char path[300];
    struct stat found;

    for (struct dirent *each; links && (each = readdir(links));) {
        snprintf(path, sizeof path, LINKS "/%s", each->d_name);
        if (!strncmp(each->d_name, OURS, strlen(OURS)) && stat(path, &found) && errno == ENOENT)
            unlink(path);
    }
    if (links)
        closedir(links);
}

static void look(void)
{
    DIR *disks = opendir("/sys/block");

    forget_what_is_gone();
    for (struct dirent *each; disks && (each = readdir(disks));) {
        if (!strncmp(each->d_name, "vd", 2))
            link_disk(each->d_name);
    }
    if (disks)
        closedir(disks);
}

/* A message is words with a zero byte behind each; which disk it is about is looked up, so what is lost is not missed. */
static void on_event(void *context, short events)
{
    static const char about[] = "SUBSYSTEM=block";
    char message[4096];
    bool ours = false;

    (void)context;
    (void)events;
    for (ssize_t got; (got = recv(events_fd, message, sizeof message - 1, MSG_DONTWAIT)) > 0;) {
        message[got] = 0;
        for (char *word = message; word < message + got; word += strlen(word) + 1)
            ours = ours || !strcmp(word, about);
    }
    if (errno == ENOBUFS)
        ours = true;
    if (ours)
        look();
}

void disks_start(void)
{
    struct uevent_address kernel = {.family = AF_NETLINK, .groups = FROM_THE_KERNEL};

    /* One that listens must not be made anew. */
    if (events_fd >= 0)
        return;
    events_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_PROTOCOL_UEVENT);
    if (events_fd >= 0 && !bind(events_fd, (struct sockaddr *)&kernel, sizeof kernel))
        loop_watch(events_fd, POLLIN, on_event, NULL);
    look();
}

/* Undoes what the kernel does to blanks in /proc/self/mountinfo: \040 and the like. */
static void unescape(char *text)
{
    char *to = text;

    for (const char *from = text; *from;) {
        unsigned value;

        if (*from == '\\' && sscanf(from + 1, "%3o", &value) == 1) {
            *to++ = (char)value;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

/* Where the ext4 file system on a device is mounted; false when it is not. */
static bool find_mount(dev_t device, char place[1024])
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[4096];
    bool found = false;

    while (!found && mounts && fgets(line, sizeof line, mounts)) {
        unsigned number, minor_number;
        const char *kind = strstr(line, " - ");

        found = kind && !strncmp(kind, " - ext4 ", 8) &&
            sscanf(line, "%*d %*d %u:%u %*s %1023s", &number, &minor_number, place) == 3 &&
            makedev(number, minor_number) == device;
    }
    if (mounts)
        fclose(mounts);
    if (found)
        unescape(place);
    return found;
}

static int failed(const char *device, const char *why)
{
    fprintf(stderr, "resize2fs: %s: %s\n", device, why);
    return 1;
}

int disks_resize2fs(int count, char *const words[])
{
    struct stat device;
    struct statfs before;
    uint64_t bytes = 0;
    char place[1024];

    if (count != 2) {
        fputs("usage: resize2fs DEVICE, of a mounted ext4 file system\n", stderr);
        return 2;
    }
    int fd = open(words[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &device) || ioctl(fd, BLOCK_GET_SIZE, &bytes))
        return failed(words[1], strerror(errno));
    close(fd);
    if (!find_mount(device.st_rdev, place))
        return failed(words[1], "no ext4 file system on it is mounted");
    fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatfs(fd, &before))
        return failed(place, strerror(errno));
    uint64_t blocks = bytes / (uint64_t)before.f_bsize;
    if (ioctl(fd, EXT4_RESIZE, &blocks))
        return failed(place, strerror(errno));
    printf("%s is as large as %s now: %llu MiB\n", place, words[1], (unsigned long long)(bytes >> 20));
    return 0;
}
