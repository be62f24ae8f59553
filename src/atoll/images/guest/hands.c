/* Commands that the host runs in this guest, over a port of its own. Effects: a virtio port, processes, terminals.
 *
 * Nothing is kept of output: it is read from a command when the host takes it, so a slow reader makes the command
 * wait. The kernel takes a frame whole or not at all, so none is ever half written.
 */
#include "hands.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "child.h"
#include "hands_message.h"
#include "log.h"
#include "loop.h"
#include "network.h"

#define PORTS "/sys/class/virtio-ports"
#define NAME "atoll.hands"

enum {
    SESSIONS = 20, /* more than the host asks for: some are on their way out */
    PIECE = 16384,
    FIRST_LOOK_MS = 2,
    LAST_LOOK_MS = 200,
    LOOKS = 40,
    HANG_UP_MS = 2000,
    NOT_EXECUTABLE = 126,
    NOT_FOUND = 127,
};

/* A session is in use while it has a process, or its end was not told yet. */
struct session {
    bool used;
    uint16_t id;
    pid_t pid;
    int input;      /* -1: closed */
    int outputs[2]; /* of both streams; a terminal has the first alone, which is its input as well */
    bool terminal;
    bool ended;
    int status;
    bool unwanted;
    bool input_ended;
    uint32_t credit;
    uint32_t taken; /* input that was, and was not told */
    size_t held;    /* input that waits */
    uint8_t waiting[HANDS_WINDOW];
    struct timer kill_timer;
};

static struct {
    bool full;      /* the host takes nothing just now */
    bool connected; /* the host has said hello */
    bool greeting;  /* and was not answered yet */
    uint8_t nonce[HANDS_NONCE];
    size_t have;
    uint8_t bytes[HANDS_HEAD + HANDS_MOST];
    struct session sessions[SESSIONS];
    struct timer look_timer;
    int looks;
} hands;

static int port = -1;

static void pump(struct session *session);
static void on_port(void *context, short events);

/* --- frames to the host */

static void watch_port(void)
{
    loop_watch(port, (short)(POLLIN | (hands.full ? POLLOUT : 0)), on_port, NULL);
}

/* Whether a frame can be written now. If not, everything goes on when it can. */
static bool has_room(void)
{
    struct pollfd room = {.fd = port, .events = POLLOUT};

    if (port >= 0 && hands.connected && poll(&room, 1, 0) > 0 && (room.revents & POLLOUT)) {
        hands.full = false;
        return true;
    }
    if (port >= 0 && hands.connected && !hands.full) {
        hands.full = true;
        watch_port();
    }
    return false;
}

static bool tell(uint8_t kind, uint16_t session, const void *data, size_t size)
{
    static uint8_t frame[HANDS_HEAD + PIECE];

    hands_head(frame, kind, session, (uint32_t)size);
    memcpy(frame + HANDS_HEAD, data, size);
    return write(port, frame, HANDS_HEAD + size) == (ssize_t)(HANDS_HEAD + size);
}

static bool tell_number(uint8_t kind, uint16_t session, uint32_t number)
{
    uint8_t bytes[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8), (uint8_t)number};

    return tell(kind, session, bytes, sizeof bytes);
}

/* --- sessions */

static struct session *find(uint16_t id)
{
    for (int i = 0; i < SESSIONS; i++) {
        if (hands.sessions[i].used && hands.sessions[i].id == id)
            return &hands.sessions[i];
    }
    return NULL;
}

static void close_input(struct session *session)
{
    if (session->input >= 0 && session->input != session->outputs[0])
        loop_close(session->input);
    session->input = -1;
    session->held = 0;
}

static void close_output(struct session *session, int stream)
{
    if (session->outputs[stream] == session->input)
        session->input = -1;
    loop_close(session->outputs[stream]);
    session->outputs[stream] = -1;
}

static void kill_now(void *context)
{
    struct session *session = context;

    if (session->pid > 0)
        kill(-session->pid, SIGKILL);
}

/* Nobody reads it any more. Closing a terminal tells those on it so, too. */
static void abandon(struct session *session)
{
    if (!session->used || session->unwanted)
        return;
    session->unwanted = true;
    if (session->pid > 0)
        kill(-session->pid, SIGHUP);
    close_input(session);
    close_output(session, 0);
    close_output(session, 1);
    session->kill_timer.fire = kill_now;
    session->kill_timer.context = session;
    timer_start(&session->kill_timer, HANG_UP_MS);
    pump(session);
}

static void on_stream(void *context, short events)
{
    (void)events;
    pump(context);
}

/* A piece of what it wrote; false when there is nothing more now. */
static bool pass_on(struct session *session, int stream)
{
    static uint8_t piece[PIECE];
    int fd = session->outputs[stream];
    size_t most = session->credit < sizeof piece ? session->credit : sizeof piece;

    if (fd < 0)
        return false;
    if (!most || !has_room()) {
        loop_forget(fd);
        return false;
    }
    ssize_t got = read(fd, piece, most);
    if (got > 0) {
        session->credit -= (uint32_t)got;
        tell((uint8_t)(HANDS_OUTPUT + stream), session->id, piece, (size_t)got);
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        /* Who still holds the stream of a command that has ended is not waited for. */
        if (session->ended)
            close_output(session, stream);
        else
            loop_watch(fd, (short)(POLLIN | (stream == 0 && session->terminal && session->held ? POLLOUT : 0)),
                       on_stream, session);
        return false;
    }
    close_output(session, stream);
    return false;
}

static void feed(struct session *session)
{
    while (session->held && session->input >= 0) {
        ssize_t put = write(session->input, session->waiting, session->held);

        if (put < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (session->input != session->outputs[0])
                loop_watch(session->input, POLLOUT, on_stream, session);
            return;
        }
        if (put <= 0) {
            /* It reads no more: what comes for it is taken, and lost. */
            session->taken += (uint32_t)session->held;
            session->held = 0;
            close_input(session);
            return;
        }
        session->taken += (uint32_t)put;
        session->held -= (size_t)put;
        memmove(session->waiting, session->waiting + put, session->held);
    }
    if (session->input >= 0 && session->input != session->outputs[0]) {
        loop_forget(session->input);
        if (session->input_ended)
            close_input(session);
    }
}

/* All that can be done for a session now. */
static void pump(struct session *session)
{
    if (!session->used)
        return;
    feed(session);
    if (session->taken && has_room() && tell_number(HANDS_TAKEN, session->id, session->taken))
        session->taken = 0;
    for (int stream = 0; stream < 2; stream++) {
        while (pass_on(session, stream))
            ;
    }
    if (!session->ended || session->outputs[0] >= 0 || session->outputs[1] >= 0)
        return;
    if (hands.connected && !(has_room() && tell_number(HANDS_EXIT, session->id, (uint32_t)session->status)))
        return;
    close_input(session);
    timer_stop(&session->kill_timer);
    session->used = false;
}

static void pump_all(void)
{
    for (int i = 0; i < SESSIONS; i++)
        pump(&hands.sessions[i]);
}

void hands_child_ended(pid_t pid, int status)
{
    for (int i = 0; i < SESSIONS; i++) {
        struct session *session = &hands.sessions[i];

        if (session->used && session->pid == pid && !session->ended) {
            session->ended = true;
            session->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (session->unwanted)
                kill(-pid, SIGKILL);
            session->pid = 0;
            pump(session);
        }
    }
}

/* --- the command */

static _Noreturn void refuse(const char *what, int why)
{
    dprintf(STDERR_FILENO, "%s: %s\n", what, strerror(why));
    _exit(why == ENOENT || why == ENOTDIR ? NOT_FOUND : NOT_EXECUTABLE);
}

static bool is_set(const struct hands_start *start, const char *name)
{
    const char *text = start->first;
    size_t length = strlen(name);

    for (int i = 0; i < start->words + start->variables; i++, text += strlen(text) + 1) {
        if (i >= start->words && !strncmp(text, name, length) && text[length] == '=')
            return true;
    }
    return false;
}

static void become_user(const struct hands_start *start, const char **home)
{
    const char *wanted = start->user[0] ? start->user : "0";
    char *end = NULL;
    unsigned long number = strtoul(wanted, &end, 10);
    struct passwd *user = *end ? getpwnam(wanted) : getpwuid((uid_t)number);
    gid_t gid = user ? user->pw_gid : 0;

    if (!user && *end) {
        dprintf(STDERR_FILENO, "there is no user %s\n", wanted);
        _exit(NOT_EXECUTABLE);
    }
    *home = user ? user->pw_dir : "/";
    const char *name = user ? user->pw_name : wanted;
    const char *shell = user && user->pw_shell[0] ? user->pw_shell : "/bin/sh";
    const char *const given[][2] = {
        {"PATH", "/bin:/sbin:/usr/bin:/usr/sbin"}, {"HOME", *home}, {"USER", name}, {"LOGNAME", name}, {"SHELL", shell},
    };
    clearenv();
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (!is_set(start, given[i][0]))
            setenv(given[i][0], given[i][1], 1);
    }
    if ((user ? initgroups(name, gid) : setgroups(1, &gid)) || setgid(gid) || setuid(user ? user->pw_uid : (uid_t)number))
        refuse(wanted, errno);
}

static _Noreturn void become(const struct hands_start *start, const int streams[3])
{
    static char *argv[HANDS_WORDS + 1];
    const char *text = start->first, *home = "/";
    sigset_t none;

    setsid();
    if (start->rows)
        ioctl(streams[0], TIOCSCTTY, 0);
    for (int standard = STDIN_FILENO; standard <= STDERR_FILENO; standard++)
        dup2(streams[standard], standard);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    child_link_applets();
    become_user(start, &home);
    for (int i = 0; i < start->words + start->variables; i++, text += strlen(text) + 1) {
        if (i < start->words)
            argv[i] = (char *)text;
        else
            putenv((char *)text);
    }
    if (start->directory[0] ? chdir(start->directory) : chdir(home) && chdir("/"))
        refuse(start->directory, errno == ENOENT ? EINVAL : errno);
    execvp(argv[0], argv);
    refuse(argv[0], errno);
}

static bool open_terminal(const struct hands_start *start, int *ours, int theirs[3])
{
    struct winsize size = {.ws_row = start->rows, .ws_col = start->columns};
    int unlocked = 0, number = -1;
    char path[32];

    *ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (*ours < 0 || ioctl(*ours, TIOCSPTLCK, &unlocked) || ioctl(*ours, TIOCGPTN, &number))
        return false;
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    theirs[0] = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    theirs[1] = theirs[2] = theirs[0];
    return theirs[0] >= 0 && !ioctl(*ours, TIOCSWINSZ, &size);
}

static bool open_pipe(int *ours, int *theirs, bool is_input)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC))
        return false;
    *ours = ends[is_input];
    *theirs = ends[!is_input];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static bool open_streams(struct session *session, const struct hands_start *start, int theirs[3])
{
    if (start->rows) {
        session->terminal = true;
        if (!open_terminal(start, &session->outputs[0], theirs))
            return false;
        session->input = session->outputs[0];
        return true;
    }
    return open_pipe(&session->input, &theirs[0], true) && open_pipe(&session->outputs[0], &theirs[1], false)
           && open_pipe(&session->outputs[1], &theirs[2], false);
}

static void run(const struct hands_frame *frame)
{
    struct hands_start start;
    struct session *session = NULL;
    int theirs[3] = {-1, -1, -1};

    for (int i = 0; i < SESSIONS && !session; i++) {
        if (!hands.sessions[i].used)
            session = &hands.sessions[i];
    }
    if (!session || find(frame->session) || !hands_parse_start(frame, &start)) {
        tell_number(HANDS_EXIT, frame->session, NOT_EXECUTABLE);
        return;
    }
    /* A command may look up names, before there was time to say where. */
    network_settle();
    session->used = true;
    session->id = frame->session;
    session->pid = 0;
    session->input = session->outputs[0] = session->outputs[1] = -1;
    session->terminal = session->ended = session->unwanted = session->input_ended = false;
    session->credit = HANDS_CREDIT;
    session->taken = 0;
    session->held = 0;
    session->status = NOT_EXECUTABLE;
    if (open_streams(session, &start, theirs))
        session->pid = fork();
    else
        session->pid = -1;
    if (session->pid == 0)
        become(&start, theirs);
    for (int i = 0; i < (session->terminal ? 1 : 3); i++) {
        if (theirs[i] >= 0)
            close(theirs[i]);
    }
    if (session->pid < 0) {
        say("hands: starting a command: %s", strerror(errno));
        session->pid = 0;
        session->ended = true;
    } else if (!start.input && !session->terminal) {
        close_input(session);
    }
    pump(session);
}

/* --- frames from the host */

static void take_input(struct session *session, const struct hands_frame *frame)
{
    if (session->input < 0 || session->input_ended || frame->size > sizeof session->waiting - session->held) {
        session->taken += frame->size;
        return;
    }
    memcpy(session->waiting + session->held, frame->data, frame->size);
    session->held += frame->size;
}

static void end_input(struct session *session)
{
    static const uint8_t end_of_file = 4;

    if (!session->terminal)
        session->input_ended = true;
    else if (session->held < sizeof session->waiting)
        session->waiting[session->held++] = end_of_file;
}

static void resize(struct session *session, const struct hands_frame *frame)
{
    uint32_t both = hands_number(frame);
    struct winsize size = {.ws_row = (unsigned short)(both >> 16), .ws_col = (unsigned short)both};

    if (session->terminal && session->outputs[0] >= 0)
        ioctl(session->outputs[0], TIOCSWINSZ, &size);
}

/* What the host says can be here before the kernel has heard that there is a host, and then it takes nothing for it:
 * SIGIO tells when it does. */
static void answer_greeting(void)
{
    if (!hands.greeting)
        return;
    hands.connected = true;
    if (tell(HANDS_HELLO, 0, hands.nonce, sizeof hands.nonce)) {
        hands.greeting = false;
    } else {
        hands.full = true;
        watch_port();
    }
}

static void greet(const struct hands_frame *frame)
{
    for (int i = 0; i < SESSIONS; i++)
        abandon(&hands.sessions[i]);
    if (frame->size != HANDS_NONCE)
        return;
    memcpy(hands.nonce, frame->data, sizeof hands.nonce);
    hands.greeting = true;
    answer_greeting();
}

static void obey(const struct hands_frame *frame)
{
    struct session *session = find(frame->session);

    if (frame->kind == HANDS_HELLO) {
        greet(frame);
        return;
    }
    if (frame->kind == HANDS_START) {
        run(frame);
        return;
    }
    if (!session)
        return;
    switch (frame->kind) {
    case HANDS_INPUT:
        take_input(session, frame);
        break;
    case HANDS_END_INPUT:
        end_input(session);
        break;
    case HANDS_RESIZE:
        resize(session, frame);
        break;
    case HANDS_SIGNAL:
        if (session->pid > 0)
            kill(-session->pid, (int)hands_number(frame));
        break;
    case HANDS_GIVE_CREDIT:
        session->credit += hands_number(frame);
        if (session->credit > HANDS_CREDIT)
            session->credit = HANDS_CREDIT;
        break;
    case HANDS_HANG_UP:
        abandon(session);
        break;
    default:
        return;
    }
    pump(session);
}

static void obey_all(void)
{
    size_t done = 0;
    struct hands_frame frame;
    int size;

    while ((size = hands_parse(hands.bytes + done, hands.have - done, &frame)) > 0) {
        if (frame.kind != HANDS_SKIP)
            obey(&frame);
        done += (size_t)size;
    }
    hands.have = size < 0 ? 0 : hands.have - done;
    memmove(hands.bytes, hands.bytes + done, hands.have);
}

/* The host has gone: nobody wants what runs. That it is there again is told by SIGIO, perhaps before we hear that it
 * had gone. */
static void lose_host(void)
{
    struct pollfd now = {.fd = port};

    loop_forget(port);
    hands.connected = false;
    hands.full = false;
    hands.have = 0;
    for (int i = 0; i < SESSIONS; i++)
        abandon(&hands.sessions[i]);
    if (poll(&now, 1, 0) == 0)
        hands_stir();
}

static void on_port(void *context, short events)
{
    (void)context;
    if (events & POLLIN) {
        ssize_t got = read(port, hands.bytes + hands.have, sizeof hands.bytes - hands.have);

        if (got > 0) {
            hands.have += (size_t)got;
            obey_all();
        } else if (got == 0 || errno != EAGAIN) {
            lose_host();
            return;
        }
    } else if (events & (POLLHUP | POLLERR | POLLNVAL)) {
        lose_host();
        return;
    }
    if (events & POLLOUT) {
        hands.full = false;
        watch_port();
        answer_greeting();
        pump_all();
    }
}

void hands_stir(void)
{
    if (port < 0)
        return;
    watch_port();
    answer_greeting();
}

/* --- the port */

static bool is_ours(const char *entry)
{
    char path[512], name[64];

    snprintf(path, sizeof path, PORTS "/%.200s/name", entry);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
    if (fd >= 0)
        close(fd);
    name[got > 0 ? got : 0] = 0;
    name[strcspn(name, "\n")] = 0;
    return !strcmp(name, NAME);
}

static bool open_port(void)
{
    DIR *ports = opendir(PORTS);
    struct dirent *entry;
    char path[300];

    while (ports && port < 0 && (entry = readdir(ports))) {
        snprintf(path, sizeof path, "/dev/%.250s", entry->d_name);
        if (entry->d_name[0] != '.' && is_ours(entry->d_name))
            port = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    }
    if (ports)
        closedir(ports);
    return port >= 0;
}

static void look(void *context)
{
    static uint64_t retry_ms = FIRST_LOOK_MS;

    (void)context;
    if (port >= 0)
        return;
    if (!open_port()) {
        retry_ms = retry_ms * 2 < LAST_LOOK_MS ? retry_ms * 2 : LAST_LOOK_MS;
        if (hands.looks++ < LOOKS)
            timer_start(&hands.look_timer, retry_ms);
        return;
    }
    fcntl(port, F_SETOWN, getpid());
    fcntl(port, F_SETFL, O_NONBLOCK | O_ASYNC);
    watch_port();
}

void hands_start(void)
{
    /* A timer that runs must not be made anew. */
    if (hands.look_timer.fire)
        return;
    signal(SIGPIPE, SIG_IGN);
    hands.look_timer.fire = look;
    look(NULL);
}
