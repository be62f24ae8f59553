/* The guest agent: process 1 of the appliance. Effects: through the other files.
 *
 *   mounts, modules -> interface -> DHCP -> metadata -> port 80 open, user data running -> further interfaces
 *                          |                            |
 *                          +-> folders of the host -----+
 *                          |
 *                          +-> all modules, then wait: the guest becomes a template, and its copies go on from
 *                              here when they are told who they are (channel_message.h)
 *
 * Port 80 opens last, so that an answer there means a guest that knows who it is.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "console.h"
#include "dhcp.h"
#include "disks.h"
#include "folders.h"
#include "hands.h"
#include "identity.h"
#include "instance.h"
#include "log.h"
#include "loop.h"
#include "metadata.h"
#include "network.h"
#include "power.h"
#include "script.h"
#include "secondary.h"
#include "server.h"
#include "sha256.h"
#include "startup.h"

enum { FIRST_NIC_RETRY_MS = 2, LAST_NIC_RETRY_MS = 100, SPARE_MS = 50, NO_ANSWER_MS = 1000, SETTLE_MS = 500 };
/* Of many forks at once, those that have come up leave the CPUs to the others, and to their own first answers. */
enum { FORK_SPARE_MS = 500 };

static struct instance instance;
static struct dhcp dhcp;
static pid_t script;
static int signals = -1;
static struct timer nic_timer;
static struct timer spare_timer;
static struct timer wait_timer;
static bool waits;   /* this guest becomes a template */
static bool waiting; /* for an identity, just now */
static bool rehearsing;
static bool ours; /* the interfaces are, to configure */

static void draw_random(void)
{
    uint8_t drawn[16];

    instance.random[0] = 0;
    if (getrandom(drawn, sizeof drawn, GRND_NONBLOCK) != sizeof drawn)
        return;
    for (size_t i = 0; i < sizeof drawn; i++)
        snprintf(instance.random + 2 * i, 3, "%02x", drawn[i]);
}

static void on_metadata(const struct metadata *metadata)
{
    snprintf(instance.id, sizeof instance.id, "%s", metadata->instance_id);
    sha256_hex(metadata->user_data, metadata->user_data_length, instance.user_data_sha256);
    identity_write_machine_id(instance.id, instance.machine_id);
    if (!instance.random[0])
        draw_random();
    /* One that was told who it is has its name already; a script needs the rest too. */
    if (!waits || metadata->user_data_length)
        network_settle();
    folders_wait();
    bool open = server_start(&instance);
    log_release();
    say("metadata: instance %s, %zu bytes of user data", instance.id[0] ? instance.id : "(unknown)",
        metadata->user_data_length);
    if (open)
        say("ready: port %d is open; press Enter for a shell", SERVER_PORT);
    script = script_start(metadata->user_data, metadata->user_data_length);
    timer_start(&spare_timer, waits ? FORK_SPARE_MS : SPARE_MS);
}

static void on_lease(const struct lease *lease)
{
    bool first = instance.lease.address == 0;

    instance.lease = *lease;
    if (first)
        metadata_start(on_metadata);
}

static void on_bound(struct dhcp *client, const struct lease *lease)
{
    network_apply(&client->nic, lease);
    on_lease(lease);
}

static void on_lost(struct dhcp *client, const struct lease *lease)
{
    (void)lease;
    network_clear(&client->nic);
}

static void ask_for_address(void)
{
    static const struct dhcp_use use = {on_bound, on_lost};

    ours = true;
    dhcp_start(&dhcp, &instance.nic, &use);
}

/* What needs all modules. */
static void serve_the_host(void)
{
    folders_wait();
    hands_start();
    disks_start();
}

/* What nobody waits for, while there is nothing better to do: further interfaces; the modules that the network does
 * not need, one at a time; or the rest of the lease, IPv6, and the end of the channel, which closes only when it has
 * sent all. */
static void do_spare_work(void *context)
{
    (void)context;
    if (waits) {
        network_settle();
        network_allow_ipv6(true);
        if (!rehearsing)
            channel_close();
    }
    secondary_start(ours);
    if (startup_load_module())
        timer_start(&spare_timer, 0);
    else if (!waits)
        serve_the_host();
}

static void power_off(void)
{
    power_end(END_POWER_OFF);
}

static void be(const struct order *order)
{
    if (!identity_take(order, &instance.nic)) {
        power_off();
        return;
    }
    log_hold();
    draw_random();
    ask_for_address();
    channel_taken();
}

static void park(void)
{
    server_stop();
    metadata_stop();
    secondary_stop();
    dhcp_stop(&dhcp);
    network_allow_ipv6(false);
    timer_stop(&spare_timer);
    instance = (struct instance){.nic = instance.nic};
    rehearsing = false;
    waiting = true;
    channel_ready();
}

/* An order comes when it is waited for, and a rehearsal is all that can be taken back. */
static void on_order(enum order_kind kind, const struct order *order)
{
    if (kind == ORDER_PARK) {
        if (rehearsing)
            park();
    } else if (waiting) {
        waiting = false;
        rehearsing = kind == ORDER_REHEARSE;
        be(order);
    }
}

static void wait_for_identity(void *context)
{
    (void)context;
    if (!identity_possible())
        return;
    say("waiting for an identity");
    waiting = true;
    channel_ready();
}

static void find_nic_later(void)
{
    static uint64_t retry_ms = FIRST_NIC_RETRY_MS;

    timer_start(&nic_timer, retry_ms);
    retry_ms = retry_ms * 2 < LAST_NIC_RETRY_MS ? retry_ms * 2 : LAST_NIC_RETRY_MS;
}

static void start_network(void)
{
    struct lease given;

    if (network_is_ours()) {
        ask_for_address();
        timer_start(&spare_timer, NO_ANSWER_MS);
    } else if (network_given(&given)) {
        say("network: the address was given from outside");
        on_lease(&given);
    } else {
        find_nic_later();
    }
}

/* The list begins with what the network needs, so the first moment at which there is an interface is the
 * moment to ask for an address. */
static void find_nic(void *context)
{
    bool found = network_start_nic(&instance.nic);

    (void)context;
    while (!found && startup_load_module())
        found = network_start_nic(&instance.nic);
    if (found && waits) {
        /* Everything that needs no identity is done, and has settled, before copies are made. */
        while (startup_load_module())
            ;
        serve_the_host();
        timer_start(&wait_timer, SETTLE_MS);
    } else if (found) {
        folders_start();
        start_network();
    } else {
        find_nic_later();
    }
}

static void child_ended(pid_t pid, int status)
{
    if (pid == script) {
        script = 0;
        instance.script_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        instance.script_ended = true;
        say("user data: ended with status %d", instance.script_status);
    }
    console_child_ended(pid);
    hands_child_ended(pid, status);
}

static void reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        child_ended(pid, status);
}

static void on_signal(void *context, short events)
{
    struct signalfd_siginfo signal;

    (void)context;
    (void)events;
    if (read(signals, &signal, sizeof signal) != sizeof signal)
        return;
    if (signal.ssi_signo == SIGCHLD)
        reap();
    else if (signal.ssi_signo == SIGTERM || signal.ssi_signo == SIGPWR)
        power_off();
    else if (signal.ssi_signo == SIGINT)
        power_end(END_REBOOT);
    else if (signal.ssi_signo == SIGIO)
        hands_stir();
}

static void watch_signals(void)
{
    sigset_t handled;

    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGPWR);
    sigaddset(&handled, SIGINT);
    sigaddset(&handled, SIGIO);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    signals = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    loop_watch(signals, POLLIN, on_signal, NULL);
    /* Ctrl-Alt-Del becomes SIGINT for us instead of a reset. */
    reboot(RB_DISABLE_CAD);
}

static bool is_called(const char *path, const char *name)
{
    const char *slash = path ? strrchr(path, '/') : NULL;

    return path && !strcmp(slash ? slash + 1 : path, name);
}

int main(int count, char *words[])
{
    if (is_called(words[0], "resize2fs"))
        return disks_resize2fs(count, words);
    startup_mount();
    say("kernel is up");
    watch_signals();
    network_start_loopback();
    nic_timer.fire = find_nic;
    spare_timer.fire = do_spare_work;
    wait_timer.fire = wait_for_identity;
    waits = channel_open(on_order);
    if (waits)
        network_allow_ipv6(false);
    find_nic(NULL);
    power_watch_button(power_off);
    console_start();
    for (;;)
        loop_step();
}
