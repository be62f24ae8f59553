"""Programs: run one to its end, start one that detaches, follow one by its pid. Starts and signals processes.

Following a process by its number is in `pids`, and offered here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from atoll.errors import HostFailure, TimedOut
from atoll.system import cgroups, host, namespaces, pids, reaper
from atoll.system.capture import Capture, Completed, Stdio
from atoll.system.failures import failing
from atoll.system.pids import Pid, alive, identify, on_gone, send_signal, wait_gone
from atoll.system.walls import Walls

__all__ = [
    "Completed",
    "Launch",
    "Pid",
    "alive",
    "blocks_of",
    "feed",
    "identify",
    "launch",
    "launch_argv",
    "on_gone",
    "processes_in",
    "run",
    "run_blocking",
    "send_signal",
    "spawn_behind",
    "spawn_blocking",
    "wait_gone",
]

_KILL_PATIENCE_S = 2.0

# Scripts that become the program named last. Everything from outside comes as an argument; nothing is pasted in.
# The first argument is how large files may become, in blocks of 512 bytes: a write beyond that is to fail, and not to
# be the end of whoever tried (XFSZ).
_LIMIT_FILES = 'trap "" XFSZ; ulimit -S -f "$1" || exit 125; shift; '
# Enters the cgroups named before "--".
_ENTER_CGROUPS = (
    _LIMIT_FILES + 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
)
# Waits for a word. Whoever should tell may end instead: then it ends too.
_WAIT_FOR_WORD = _LIMIT_FILES + 'read -r _ || exit 125; exec "$@" </dev/null'


class Launch(Struct, frozen=True):
    """A program that is to outlive us: as whom it runs, in which cgroup, with which open files.

    With a uid it runs without any capability and can never gain one; the gid is the uid unless given.
    `output` takes what it writes: a file (appended, readable by root only), or one that is open here.
    """

    argv: tuple[str, ...]
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    cgroup: str | None = None
    pass_fds: tuple[int, ...] = ()
    cwd: Path | None = None
    output: Path | int | None = None
    env: Mapping[str, str] | None = None
    file_limit: int | None = None
    """The place in any file up to which it may write; in a cgroup or behind walls only."""
    open_files: int | None = None
    """How many files it may have open, where the host lets us give it so many."""
    user_namespace: int | None = None
    """A descriptor of one in which it is root, and has all rights over what is of that namespace's users; instead of a
    uid. It can gain none outside."""


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = 30,
    check: bool = True,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    namespace: str | None = None,
) -> Completed:
    """Run a program to its end, in a network namespace if one is named.

    On a timeout or a cancellation its whole process group is killed.
    """
    with Capture(stdin) as capture:
        process = _start(argv, capture.stdio(), cwd=cwd, env=env, namespace=namespace)
        await _finish(process, argv[0], timeout_s)
        return _checked(argv[0], capture.completed(process.returncode), check)


def run_blocking(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = 30,
    check: bool = True,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    namespace: str | None = None,
) -> Completed:
    """`run` for those who have no event loop."""
    with Capture(stdin) as capture:
        process = _start(argv, capture.stdio(), cwd=cwd, env=env, namespace=namespace)
        _finish_blocking(process, argv[0], timeout_s)
        return _checked(argv[0], capture.completed(process.returncode), check)


async def launch(launch: Launch, *, timeout_s: float = 20, check: bool = True) -> Completed:
    """Start a program that detaches itself, and wait until the process that was started has ended.

    A child that detached before a timeout or a cancellation is out of reach here: find it by its cgroup.
    """
    with Capture(b"") as capture, _output(launch) as output:
        process = _start(
            launch_argv(launch),
            capture.stdio(output),
            cwd=launch.cwd,
            env=launch.env,
            pass_fds=launch.pass_fds,
        )
        await _finish(process, launch.argv[0], timeout_s)
        return _checked(launch.argv[0], capture.completed(process.returncode), check)


async def feed(
    launch: Launch, stdin: bytes, *, timeout_s: float, keep_bytes: int, namespace: str | None = None
) -> tuple[int, bytes]:
    """Run a program that is not ours to its end: its exit status, and the beginning of all that it said.

    However much that is, no more is kept. On a timeout or a cancellation its whole process group is killed.
    """
    with Capture(stdin) as capture, _Beginning(keep_bytes) as beginning:
        process = _start(
            launch_argv(launch),
            (capture.stdin.fileno(), beginning.writer, beginning.writer),
            cwd=launch.cwd,
            env=launch.env,
            pass_fds=launch.pass_fds,
            namespace=namespace,
        )
        beginning.started()
        await _finish(process, launch.argv[0], timeout_s)
        return process.returncode, beginning.read()


def spawn_blocking(launch: Launch) -> int:
    """Start a program that stays in the foreground, in a session of its own, and leave it running."""
    with _output(launch) as output:
        sink = subprocess.DEVNULL if output is None else output
        process = _start(
            launch_argv(launch),
            (subprocess.DEVNULL, sink, sink),
            cwd=launch.cwd,
            env=launch.env,
            pass_fds=launch.pass_fds,
        )
    # Should it end before we do, somebody has to collect it.
    reaper.take(process)
    return process.pid


def spawn_behind(
    walls: Walls, launch: Launch, readable: Sequence[int] = (), folder: int | None = None
) -> int:
    """As `spawn_blocking`, behind walls: it sees nothing of the host but its open files. Takes some milliseconds.

    `readable`: those of its open files that it opens again by name. `folder`: the mount that it has beside them.
    """
    # From inside the walls there is no way into a cgroup: it begins in it, or waits until it has been moved.
    group, entered = launch.cgroup, False

    def enter() -> None:
        nonlocal entered
        entered = group is not None and cgroups.enter_thread(group)

    waiting = [
        "/bin/sh",
        "-c",
        _WAIT_FOR_WORD,
        "wait-for-word",
        blocks_of(launch.file_limit),
        *confined_argv(launch),
    ]
    begin, tell = os.pipe()
    with os.fdopen(tell, "wb", buffering=0) as word:
        with os.fdopen(begin, "rb", buffering=0) as stdin, _output(launch) as output:
            sink = subprocess.DEVNULL if output is None else output
            process = walls.inside(
                lambda: _start(
                    waiting,
                    (stdin.fileno(), sink, sink),
                    cwd=Path("/"),
                    env=launch.env,
                    pass_fds=(*launch.pass_fds, *_namespaces_of(launch)),
                ),
                readable,
                enter,
                folder,
            )
        try:
            if group is not None and not entered:
                cgroups.enter(group, process.pid)
        except BaseException:
            # Without a word it ends; and with it go the files that it was given.
            word.close()
            process.wait()
            raise
        reaper.take(process)
        with contextlib.suppress(BrokenPipeError):
            word.write(b"\n")
    return process.pid


def launch_argv(launch: Launch) -> list[str]:
    """The command line that enters the cgroup, drops privileges and becomes the program."""
    argv = confined_argv(launch)
    if launch.cgroup is not None:
        entrances = map(str, cgroups.entrances(launch.cgroup))
        argv = [
            "/bin/sh",
            "-c",
            _ENTER_CGROUPS,
            "enter-cgroups",
            blocks_of(launch.file_limit),
            *entrances,
            "--",
            *argv,
        ]
    return argv


def blocks_of(limit: int | None) -> str:
    """So many bytes of a file, as `ulimit -f` takes them."""
    return "unlimited" if limit is None else str(-(-limit // 512))


def confined_argv(launch: Launch) -> list[str]:
    """The command line that drops privileges and becomes the program."""
    argv = [_program(launch.argv[0]), *launch.argv[1:]]
    if launch.uid is not None:
        gid = launch.uid if launch.gid is None else launch.gid
        groups = f"--groups={','.join(map(str, launch.groups))}" if launch.groups else "--clear-groups"
        argv = [
            _program("setpriv"),
            f"--reuid={launch.uid}",
            f"--regid={gid}",
            groups,
            "--no-new-privs",
            "--inh-caps=-all",
            "--bounding-set=-all",
            "--ambient-caps=-all",
            "--",
            *argv,
        ]
    if launch.user_namespace is not None:
        # Only a process with one thread can enter it: this one, and not us.
        enter = [f"--user=/proc/self/fd/{launch.user_namespace}", "--setuid=0", "--setgid=0", "--"]
        argv = [_program("nsenter"), *enter, _program("setpriv"), "--no-new-privs", "--", *argv]
    if launch.open_files is not None:
        number = _open_files(launch.open_files)
        argv = [_program("prlimit"), f"--nofile={number}:{number}", "--", *argv]
    return argv


def _open_files(wanted: int) -> int:
    """So many as we may have ourselves: to give more is a right of its own, which root of a container lacks."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _namespaces_of(launch: Launch) -> tuple[int, ...]:
    return () if launch.user_namespace is None else (launch.user_namespace,)


def processes_in(cgroup: str) -> tuple[int, ...]:
    """The processes in a cgroup."""
    return cgroups.members(cgroup)


class _Beginning:
    """A pipe of which everything is read, in the loop, and the beginning kept."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.writer, True)  # for those who write
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _Beginning:
        self._loop.add_reader(self._reader, self.read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        self.started()

    def started(self) -> None:
        """The program has its end; ours is of no use."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def read(self) -> bytes:
        """What there is to be read now. Some each time, so that a flood leaves the loop time for all else."""
        try:
            piece = os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return bytes(self._kept)
        if not piece:
            self._loop.remove_reader(self._reader)
        self._kept += piece[: self._keep_bytes - len(self._kept)]
        return bytes(self._kept)


@contextlib.contextmanager
def _output(launch: Launch) -> Iterator[int | None]:
    if launch.output is None or isinstance(launch.output, int):
        yield launch.output
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with failing(f"opening {launch.output} for output"):
        descriptor = os.open(launch.output, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _start(
    argv: Sequence[str],
    stdio: Stdio,
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    pass_fds: Sequence[int] = (),
    namespace: str | None = None,
) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [_program(argv[0]), *argv[1:]],
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            cwd=cwd,
            # LC_ALL: what tools say is matched against and shown in messages.
            env={**os.environ, "LC_ALL": "C.UTF-8"} if env is None else env,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    try:
        # A child begins in the namespace of the thread that starts it.
        return start() if namespace is None else namespaces.inside(namespace, start)
    except OSError as error:
        raise HostFailure(
            f"starting {_tool(argv[0])}: {error.strerror}: {error.filename}",
            hint="check that the program and its working directory are there",
        ) from error


def _program(name: str) -> str:
    return name if "/" in name else str(host.require_tool(name))


async def _finish(process: subprocess.Popen[bytes], program: str, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def collect() -> None:
        process.wait()
        if not ended.done():
            ended.set_result(None)

    # The watch outlives a second cancellation and a process that is slow to die: it will be collected.
    pids.watch(loop, _handle(process), collect)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(ended)
    except TimeoutError:
        raise _timed_out(program, timeout_s) from None
    finally:
        if not ended.done():
            _kill_group(process)
            await asyncio.wait({ended}, timeout=_KILL_PATIENCE_S)


def _finish_blocking(process: subprocess.Popen[bytes], program: str, timeout_s: float) -> None:
    handle = _handle(process)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise _timed_out(program, timeout_s)
    except BaseException:
        _kill_group(process)
        raise
    finally:
        os.close(handle)
        process.wait()


def _handle(process: subprocess.Popen[bytes]) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError as error:
        _kill_group(process)
        process.wait()
        raise HostFailure(f"following process {process.pid}: {error.strerror}") from error


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Not collected yet, so its number, which is also that of its group, cannot be anybody else's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _checked(program: str, completed: Completed, check: bool) -> Completed:
    if not check or completed.returncode == 0:
        return completed
    said = completed.stderr.decode(errors="replace").strip()
    last = said.splitlines()[-1].strip() if said else "it said nothing"
    raise HostFailure(
        f"running {_tool(program)}: {_ending(completed.returncode)}: {last}", details={"stderr": said[-2000:]}
    )


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _timed_out(program: str, timeout_s: float) -> TimedOut:
    return TimedOut(
        f"running {_tool(program)}: not done after {timeout_s:g} s",
        hint="the host may be overloaded; try again",
    )


def _tool(program: str) -> str:
    return Path(program).name
