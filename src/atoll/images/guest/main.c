/* The guest agent: process 1 of the appliance. Effects: through the other files.
 *
 *   mounts, modules -> interface -> DHCP -> metadata -> port 80 open, user data running
 *
 * Port 80 opens last, so that an answer there means a guest that knows who it is.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "console.h"
#include "dhcp.h"
#include "instance.h"
#include "log.h"
#include "loop.h"
#include "metadata.h"
#include "network.h"
#include "power.h"
#include "script.h"
#include "server.h"
#include "sha256.h"
#include "startup.h"

enum { NIC_RETRY_MS = 20, SPARE_MS = 50, NO_ANSWER_MS = 1000 };

static struct instance instance;
static pid_t script;
static int signals = -1;
static struct timer nic_timer;
static struct timer module_timer;

static void on_metadata(const struct metadata *metadata)
{
    snprintf(instance.id, sizeof instance.id, "%s", metadata->instance_id);
    sha256_hex(metadata->user_data, metadata->user_data_length, instance.user_data_sha256);
    say("metadata: instance %s, %zu bytes of user data", instance.id[0] ? instance.id : "(unknown)",
        metadata->user_data_length);
    server_start(&instance);
    script = script_start(metadata->user_data, metadata->user_data_length);
    timer_start(&module_timer, SPARE_MS);
}

static void on_lease(const struct lease *lease)
{
    bool first = instance.lease.address == 0;

    instance.lease = *lease;
    if (first)
        metadata_start(on_metadata);
}

/* The modules that the network does not need: one at a time, while there is nothing better to do. */
static void load_spare_module(void *context)
{
    (void)context;
    if (startup_load_module())
        timer_start(&module_timer, 0);
}

/* The list begins with what the network needs, so the first moment at which there is an interface is the
 * moment to ask for an address. */
static void find_nic(void *context)
{
    bool found = network_start_nic(&instance.nic);

    (void)context;
    while (!found && startup_load_module())
        found = network_start_nic(&instance.nic);
    if (found) {
        dhcp_start(&instance.nic, on_lease);
        timer_start(&module_timer, NO_ANSWER_MS);
    } else {
        timer_start(&nic_timer, NIC_RETRY_MS);
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
}

static void reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        child_ended(pid, status);
}

static void power_off(void)
{
    power_end(END_POWER_OFF);
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
    else if (signal.ssi_signo == SIGTERM)
        power_off();
    else if (signal.ssi_signo == SIGINT)
        power_end(END_REBOOT);
}

static void watch_signals(void)
{
    sigset_t handled;

    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGINT);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    signals = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    loop_watch(signals, POLLIN, on_signal, NULL);
    /* Ctrl-Alt-Del becomes SIGINT for us instead of a reset. */
    reboot(RB_DISABLE_CAD);
}

int main(void)
{
    startup_mount();
    say("kernel is up");
    watch_signals();
    network_start_loopback();
    nic_timer.fire = find_nic;
    module_timer.fire = load_spare_module;
    find_nic(NULL);
    power_watch_button(power_off);
    console_start();
    for (;;)
        loop_step();
}
