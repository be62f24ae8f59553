"""A program that enters a container and becomes a command there. Run by hands.py, with nothing but its open files.

    agent ═ control ═ watcher, on the host ──── the command, in all namespaces of the container

The watcher waits for the end of the command and tells of it; when the agent goes, it ends the command. It stays out
of the container's cgroup too: one that ends with its machine could not collect the command, for which the machine's
first process waits.

What enters the container is a child of it. Until that has become the command, nobody in the container can trace it,
read its memory or see its files: it cannot be dumped, and its memory belongs to the host's users. It imports nothing
once it is inside, where the files are somebody else's. Before it becomes the command it has given up all that is not
the container's own: users, rights, system calls, keys, open files, limits, environment.

It stands alone: the standard library, and as little of that as will do, since every command waits for it.
Effects: namespaces, ids, rights, a process.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import stat
import struct
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HANG_UP_MS = 2000
MOST = 1 << 20
"""Bytes of what is read in the container: its users and groups."""

_NAMESPACES = 0x10000000 | 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
"""User, mount, network, ipc, uts, cgroup."""
_PID_NAMESPACE = 0x20000000
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUND, _AMBIENT, _CLEAR_AMBIENT = 1, 4, 24, 47, 4
_KEYCTL, _JOIN_SESSION = 250, 1
_CAPABILITY_VERSION = 0x20080522
_GET_PEER = 0x5441
_UNLOCK = 0x40045431
_SECCOMP_ALLOW, _SECCOMP_ERRNO, _NO_NEW_PRIVILEGES_ATTRIBUTE = 0x7FFF0000, 0x00050000, 3
_ARCHITECTURES = (0x40000003, 0x4000003E)
"""i386 and x32, beside our own."""
_ENOSYS = 38
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    control, container, *streams = map(int, sys.argv[1:])
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    socket = _socket.socket(fileno=control)
    request = _Request(os.read(control, 1 << 18))
    if not request.fields:
        return
    try:
        _checked(_libc.setns(container, _PID_NAMESPACE), "entering its processes")
        child = os.fork()
    except OSError as error:
        _fail(socket, error)
        return
    if child == 0:
        try:
            _enter(socket, container, streams, request)
        except BaseException as error:
            _fail(socket, error)
        finally:
            os._exit(_NOT_EXECUTABLE)
    for descriptor in (*streams, container):
        os.close(descriptor)
    _watch(socket, child)


class _Request:
    """What the agent wants, as it comes: fields that end with a zero byte, numbers of them first."""

    def __init__(self, packet: bytes) -> None:
        self.fields = packet.split(b"\0")[:-1]
        if self.fields:
            take = iter(self.fields)
            self.user, self.cwd = next(take).decode(), next(take)
            self.rows, self.columns = int(next(take)), int(next(take))
            self.init, self.label = int(next(take)), next(take)
            self.groups = next(take).split()
            self.rights = [int(number) for number in next(take).split()]
            self.calls = next(take).split()
            words = int(next(take))
            self.argv = [next(take) for _ in range(words)]
            self.env = dict(field.split(b"=", 1) for field in take)


def _watch(socket: _socket.socket, child: int) -> None:
    """Until the command has ended, or whoever wanted it has gone."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if ended in ready:
            break
        packet = _received(socket)
        if not packet:
            _signal(child, signal.SIGHUP)
            poll.unregister(socket.fileno())
            if not poll.poll(HANG_UP_MS):
                _signal(child, signal.SIGKILL)
            break
        _signal(child, packet[0])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # What it left in its group goes with it, when nobody is there to whom it could be of use.
    try:
        socket.send(b"E" + struct.pack("!i", 128 - status if status < 0 else status))
    except OSError:
        _signal(child, signal.SIGKILL)


def _received(socket: _socket.socket) -> bytes:
    try:
        return socket.recv(16)
    except OSError:
        return b""


def _signal(child: int, number: int) -> None:
    """To all in its group; it makes that with its first step."""
    try:
        os.killpg(child, number)
    except OSError:
        _ignoring(os.kill, child, number)


def _fail(socket: _socket.socket, error: BaseException) -> None:
    _ignoring(socket.send, b"F" + str(error).encode("utf-8", "replace")[:500])


# --- inside


def _enter(socket: _socket.socket, container: int, streams: list[int], request: _Request) -> None:
    os.setsid()
    for group in request.groups:
        # First of all: from here on it counts as the container's, and ends with it.
        _write(group, b"0")
    seccomp, denied = _seccomp(request.calls)
    label = _label_file(request)
    _take_limits(request.init)
    # From here on files are the container's: no module is ever looked for there.
    sys.meta_path.clear()
    sys.path.clear()
    _checked(_libc.setns(container, _NAMESPACES), "entering its namespaces")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.syscall(ctypes.c_long(_KEYCTL), ctypes.c_long(_JOIN_SESSION), None)
    uid, gid, groups, env, home = _account(request)
    if request.rows:
        streams = [_terminal(socket, request, uid)] * 3
    else:
        for descriptor in streams:
            _ignoring(os.fchown, descriptor, uid, gid)
    _drop_rights(request.rights)
    _checked(-abs(seccomp.seccomp_load(denied)), "denying system calls")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if label is not None:
        os.write(label, b"exec " + request.label)
    _libc.prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    socket.send(b"R")
    # As others see it, it has begun: what fails now is told as a command would.
    for standard, descriptor in enumerate(streams):
        os.dup2(descriptor, standard)
    os.closerange(3, 1 << 20)
    _become(request, env, home)


def _become(request: _Request, env: dict[bytes, bytes], home: bytes) -> None:
    program = request.argv[0]
    try:
        if request.cwd:
            os.chdir(request.cwd)
        elif not _ignoring(os.chdir, home):
            os.chdir("/")
    except OSError as error:
        _say(request.cwd, error)
        os._exit(_NOT_EXECUTABLE)
    # Not execvpe, which imports.
    ways = [b""] if b"/" in program else [way + b"/" for way in env[b"PATH"].split(b":") if way]
    refusal: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for way in ways:
        try:
            os.execve(way + program, request.argv, env)  # noqa: S606 - that is what it is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refusal = error
    _say(program, refusal)
    os._exit(_NOT_FOUND if isinstance(refusal, FileNotFoundError) else _NOT_EXECUTABLE)


def _say(what: bytes, error: OSError) -> None:
    os.write(2, what + b": " + str(error.strerror).lower().encode() + b"\n")


def _label_file(request: _Request) -> int | None:
    """Where the AppArmor profile of what is executed next is written."""
    if not request.label:
        return None
    for path in ("/proc/thread-self/attr/apparmor/exec", "/proc/thread-self/attr/exec"):
        try:
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
    raise OSError("there is no way to its AppArmor profile")


def _take_limits(init: int) -> None:
    """Those of its first process, not those of our service."""
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            _ignoring(_take_limit, init, getattr(resource, name))
    theirs = os.open(f"/proc/{init}/oom_score_adj", os.O_RDONLY | os.O_CLOEXEC)
    _write(b"/proc/self/oom_score_adj", os.read(theirs, 16))
    os.close(theirs)


def _write(path: bytes, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, text)
    os.close(descriptor)


def _take_limit(init: int, kind: int) -> None:
    resource.setrlimit(kind, resource.prlimit(init, kind))


def _seccomp(calls: list[bytes]) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """A filter as the container's own. Loaded with the right to do so, not with one that takes others away."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_SECCOMP_ALLOW)))
    library.seccomp_attr_set(context, _NO_NEW_PRIVILEGES_ATTRIBUTE, 0)
    for architecture in _ARCHITECTURES:
        library.seccomp_arch_add(context, ctypes.c_uint32(architecture))
    for name in calls:
        number = library.seccomp_syscall_resolve_name(name)
        if number != -1:
            library.seccomp_rule_add(context, ctypes.c_uint32(_SECCOMP_ERRNO | _ENOSYS), number, 0)
    return library, context


def _drop_rights(dropped: list[int]) -> None:
    for number in dropped:
        _checked(_libc.prctl(_DROP_BOUND, number, 0, 0, 0), "dropping rights")
    _libc.prctl(_AMBIENT, _CLEAR_AMBIENT, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, held), "reading rights")
    low_e, low_p, _, high_e, high_p, _ = struct.unpack("6I", held.raw)
    low = ~sum(1 << number for number in dropped if number < 32)
    high = ~sum(1 << number - 32 for number in dropped if number >= 32)
    given = struct.pack("6I", low_e & low, low_p & low, 0, high_e & high, high_p & high, 0)
    _checked(_libc.capset(header, given), "dropping rights")


def _terminal(socket: _socket.socket, request: _Request, uid: int) -> int:
    """A terminal of the container's own: its other end goes to the agent, which looks at what it was given."""
    master = -1
    for path in ("/dev/pts/ptmx", "/dev/ptmx"):
        try:
            master = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError:
            continue
    if master < 0:
        raise OSError("it has no terminals")
    fcntl.ioctl(master, _UNLOCK, struct.pack("i", 0))
    slave = fcntl.ioctl(master, _GET_PEER, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", request.rows, request.columns, 0, 0))
    _ignoring(os.fchown, slave, uid, -1)
    socket.sendmsg([b"T"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", master))])
    os.close(master)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return int(slave)


def _account(request: _Request) -> tuple[int, int, list[int], dict[bytes, bytes], bytes]:
    """Who the user is, by the container's own word: ids, groups, environment, home."""
    wanted = request.user.encode() or b"0"
    name, uid, gid, home, shell = b"root", 0, 0, b"/", b"/bin/sh"
    found = False
    for line in _lines("/etc/passwd"):
        fields = line.split(b":")
        if len(fields) >= 7 and wanted in (fields[0], fields[2]):
            name, home, shell = fields[0], fields[5] or b"/", fields[6].strip() or shell
            uid, gid, found = _id(fields[2]), _id(fields[3]), True
            break
    if not found and wanted.isdigit():
        uid = _id(wanted)
        name = wanted if uid else name
    elif not found:
        raise OSError(f"its guest has no user {request.user}")
    groups = [gid]
    for line in _lines("/etc/group"):
        fields = line.strip().split(b":")
        if len(fields) >= 4 and name in fields[3].split(b",") and len(groups) < 64:
            groups.append(_id(fields[2]))
    env = {b"PATH": _PATH.encode(), b"HOME": home, b"USER": name, b"LOGNAME": name, b"SHELL": shell}
    return uid, gid, groups, {**env, b"container": b"lxc", **request.env}, home


def _id(text: bytes) -> int:
    if not text.isdigit() or int(text[:9]) > 65_535:
        raise OSError("its guest has a user or group of no possible number")
    return int(text)


def _lines(path: str) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return os.read(descriptor, MOST).split(b"\n")
    finally:
        os.close(descriptor)


def _ignoring(function: Callable[..., object], *args: object) -> bool:
    """Whether it could be done."""
    try:
        function(*args)
    except (OSError, ValueError):
        return False
    return True


def _checked(answer: int, doing: str) -> None:
    if answer < 0:
        number = ctypes.get_errno() or -answer
        raise OSError(number, f"{doing}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
