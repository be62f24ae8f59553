/* Becoming another machine than the one that this memory was copied from.
 * Effects: the kernel's random numbers, clock, MAC, host name, /etc/machine-id. */
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "sha256.h"

/* linux/random.h of the kernel's sources, which a musl tool chain does not bring. */
#define RNDADDENTROPY _IOW('R', 0x03, int[2])
#define RNDRESEEDCRNG _IO('R', 0x07)

/* Both are needed: the first only stirs the pool, from which the generator would draw minutes later. */
static bool reseed(const uint8_t seed[CHANNEL_SEED])
{
    struct {
        int bits;
        int size;
        uint8_t seed[CHANNEL_SEED];
    } entropy = {.bits = CHANNEL_SEED * 8, .size = CHANNEL_SEED};
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);

    memcpy(entropy.seed, seed, CHANNEL_SEED);
    bool done = fd >= 0 && !ioctl(fd, RNDADDENTROPY, &entropy) && !ioctl(fd, RNDRESEEDCRNG, 0);
    if (!done)
        say("reseeding: %s", strerror(errno));
    explicit_bzero(&entropy, sizeof entropy);
    if (fd >= 0)
        close(fd);
    return done;
}

static void set_clock(uint64_t clock_ns)
{
    struct timespec now = {(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};

    if (clock_settime(CLOCK_REALTIME, &now))
        say("setting the clock: %s", strerror(errno));
}

bool identity_possible(void)
{
    static const uint8_t nothing[CHANNEL_SEED];

    return reseed(nothing);
}

bool identity_take(const struct order *order, struct nic *nic)
{
    if (!reseed(order->seed))
        return false;
    set_clock(order->clock_ns);
    if (sethostname(order->name, strlen(order->name)))
        say("setting the host name: %s", strerror(errno));
    return network_set_mac(nic, order->mac);
}

void identity_write_machine_id(const char *instance_id, char machine_id[33])
{
    char hex[SHA256_HEX];
    uint8_t drawn[32];
    bool known = instance_id[0] != 0;

    if (!known && getrandom(drawn, sizeof drawn, GRND_NONBLOCK) != sizeof drawn)
        return;
    sha256_hex(known ? (const uint8_t *)instance_id : drawn, known ? strlen(instance_id) : sizeof drawn, hex);
    snprintf(machine_id, 33, "%.32s", hex);
    int fd = open("/etc/machine-id", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    if (fd < 0 || dprintf(fd, "%s\n", machine_id) < 0)
        say("writing /etc/machine-id: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
}
