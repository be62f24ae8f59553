"""Walls around a program that outsiders talk to: namespaces of its own, and a root with nothing in it. Makes both.

    /start      while it starts, read only: the host's programs and libraries, /proc with itself in it, its devices
    /dev/null   all that is left when `clear` has taken /start away
    /folder     one folder of the host, for those whose work it is

All else reaches it as open files. Mounts, processes, shared memory, host name and links of the host and of other
programs are not there for it; it is process 1 where it is. Landlock is a second wall around the same, where the
kernel has it. One whose work is TCP keeps the network of who starts it, and nothing else.

Namespaces belong to threads, so a short-lived one enters them and starts the program; the caller's never moves. The
root is made once and held: each program gets a copy, which is much quicker than to leave the host's behind.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from atoll.system import landlock, libc, mounts, own_thread
from atoll.system.failures import failing, ignoring
from atoll.system.pids import Pid, opened

T = TypeVar("T")

HOST_NAME = "walled"
START = "/start"
FOLDER = "/folder"

_FACTS = f"{START}/facts"

# Where the root is put together, in a mount namespace that nobody else sees.
_STAGE = Path("/mnt")
# With merged directories all but /usr are links into it.
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib64")
_LIBRARY_CACHE = Path("/etc/ld.so.cache")
_NULL = Path("/dev/null")
_READ_ONLY = libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV
_IN_MEMORY = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
# It is that of the host's processes, as whoever makes it is one. Nobody sees any there but their own.
_PROC_OPTIONS = "subset=pid,hidepid=ptraceable"
_OWN = libc.CLONE_NEWNS | libc.CLONE_NEWUTS | libc.CLONE_NEWIPC | libc.CLONE_NEWPID


class Walls:
    """For programs that need these devices while they start, and these directories beside those of the host's programs.

    `own_network`: they have none but what they are handed. Otherwise they have that of who starts them, for TCP.
    `folder`: each is given one, to do all in it that its user may. `facts`: files in /proc that they read when they
    start, as these are now.
    """

    def __init__(
        self,
        devices: Sequence[Path] = (),
        programs: Sequence[Path] = (),
        *,
        own_network: bool = True,
        folder: bool = False,
        facts: Sequence[Path] = (),
    ) -> None:
        self._devices = tuple(devices)
        self._programs = tuple(path for path in programs if path.parts[1] not in _PROGRAMS)
        self._own_network = own_network
        self._folder = folder
        self._facts = tuple(facts)
        self._root: int | None = None
        self._making = threading.Lock()

    def inside(
        self,
        function: Callable[[], T],
        readable: Sequence[int] = (),
        outside: Callable[[], None] = lambda: None,
        folder: int | None = None,
    ) -> T:
        """Run a function inside new walls; the one program that it starts stays there. Errors come through.

        `readable`: open files that the program opens again, through /proc/self/fd.
        `outside`: is run in the same thread, before it goes in.
        `folder`: a mount that is nowhere yet, and comes to be at /folder, where these walls have one.
        """
        root = self._held_root()

        def enter() -> T:
            outside()
            with failing("making walls around a process"):
                libc.unshare(libc.CLONE_FS)
                libc.setns(root, libc.CLONE_NEWNS)
                libc.unshare(_OWN | libc.CLONE_NEWNET if self._own_network else _OWN)
                libc.sethostname(HOST_NAME)
                with ExitStack() as stack:
                    grants = stack.enter_context(_grants(self._devices, self._programs, readable))
                    grants += stack.enter_context(_granted(map(_fact_in, self._facts), landlock.READ_FILE))
                    if folder is not None:
                        _put(folder)
                        grants += stack.enter_context(_granted([Path(FOLDER)], landlock.ALL))
                    landlock.restrict(grants, tcp=not self._own_network)
            return function()

        return own_thread.run(enter)

    def _held_root(self) -> int:
        with self._making:
            if self._root is None:
                self._root = own_thread.run(self._make_root)
            return self._root

    def _make_root(self) -> int:
        with failing("making an empty root"):
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount("none", "/", None, libc.MS_PRIVATE | libc.MS_REC)
            held = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _furnish(self._devices, self._programs)
                _inform(self._facts)
                if self._folder:
                    (_STAGE / FOLDER.lstrip("/")).mkdir()
                _close_stage()
                libc.pivot_root(str(_STAGE))
            except BaseException:
                os.close(held)
                raise
            return held


def clear(process: Pid) -> None:
    """Leave nothing in the root of a program that has started. Again, or gone, is fine.

    What it has open or mapped stays. One that was started without walls is left alone: its root is the host's.
    """

    def take_away() -> None:
        with opened(process) as handle:
            if handle is None:
                return
            libc.unshare(libc.CLONE_FS)
            try:
                libc.setns(handle, libc.CLONE_NEWNS)
            except ProcessLookupError:  # it has ended since
                return
        if _is_walled():
            with ignoring(errno.EINVAL):  # nothing is mounted there any more
                libc.unmount(START)

    with failing(f"clearing the root of process {process.pid}"):
        own_thread.run(take_away)


def _is_walled() -> bool:
    """Whether the root of this thread is one of ours."""
    first = Path("/", _PROGRAMS[0])
    return first.is_symlink() and first.readlink() == Path(START.lstrip("/"), _PROGRAMS[0])


def _put(folder: int) -> None:
    """The folder comes to be at its place."""
    place = os.open(FOLDER, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.put(folder, place)
    finally:
        os.close(place)


def _furnish(devices: Sequence[Path], programs: Sequence[Path]) -> None:
    stage, start = _STAGE, _STAGE / START.lstrip("/")
    libc.mount("none", str(stage), "tmpfs", libc.MS_NOSUID | libc.MS_NOEXEC, "mode=0755,size=64k")
    (stage / "dev").mkdir()
    _bind(_NULL, stage / "dev/null")
    start.mkdir()
    libc.mount("none", str(start), "tmpfs", _IN_MEMORY, "mode=0755,size=64k")
    for name in _PROGRAMS:
        _bring(Path("/", name), start)
        (stage / name).symlink_to(f"start/{name}")
    _bring(_LIBRARY_CACHE, start)
    (stage / "etc").symlink_to("start/etc")
    (start / "proc").mkdir()
    libc.mount("proc", str(start / "proc"), "proc", _IN_MEMORY, _PROC_OPTIONS)
    for path in programs:
        _bring(path, start)
        link = stage / str(path).lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(START + str(path))
    for device in devices:
        place = start / str(device).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        _bind(device, place)
        (stage / str(device).lstrip("/")).symlink_to(START + str(device))


def _inform(facts: Sequence[Path]) -> None:
    """/proc of the root: that of processes, of which each sees itself; or what has that and some facts in it."""
    if not facts:
        (_STAGE / "proc").symlink_to("start/proc")
        return
    (_STAGE / "proc").symlink_to(_FACTS.lstrip("/"))
    known = _STAGE / _FACTS.lstrip("/")
    known.mkdir()
    (known / "self").symlink_to("../proc/self")
    for fact in facts:
        place = _STAGE / _fact_in(fact).relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(fact.read_bytes())


def _fact_in(fact: Path) -> Path:
    return Path(_FACTS, fact.relative_to("/proc"))


def _close_stage() -> None:
    for place in (_STAGE / START.lstrip("/"), _STAGE):
        libc.mount(None, str(place), None, libc.MS_BIND | libc.MS_REMOUNT | _IN_MEMORY | libc.MS_RDONLY)


def _bring(path: Path, start: Path) -> None:
    """What the host has there, read only. Links of the host's stay links."""
    place = start / str(path).lstrip("/")
    if path.is_symlink():
        place.symlink_to(path.readlink())
    elif path.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        _bind(path, place)
        libc.mount(None, str(place), None, libc.MS_BIND | libc.MS_REMOUNT | _READ_ONLY)


def _bind(path: Path, place: Path) -> None:
    if path.is_dir():
        place.mkdir()
    else:
        place.touch()
    libc.mount(str(path), str(place), None, libc.MS_BIND)


@contextmanager
def _granted(paths: Iterable[Path], rights: int) -> Iterator[list[landlock.Grant]]:
    with ExitStack() as stack:
        grants = []
        for path in paths:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            grants.append(landlock.Grant(descriptor, rights))
        yield grants


@contextmanager
def _grants(
    devices: Sequence[Path], programs: Sequence[Path], readable: Sequence[int]
) -> Iterator[list[landlock.Grant]]:
    """What Landlock leaves open: programs and libraries, devices, and files that are opened again."""
    run_in = [place for name in (*_PROGRAMS, "etc") if (place := Path(START, name)).is_dir()]
    with ExitStack() as stack:

        def granted(paths: Iterable[Path], rights: int) -> list[landlock.Grant]:
            return stack.enter_context(_granted(paths, rights))

        run = landlock.EXECUTE | landlock.READ_FILE | landlock.READ_DIR
        use = landlock.READ_FILE | landlock.WRITE_FILE
        yield [
            *granted([*run_in, *(Path(START + str(path)) for path in programs)], run),
            *granted([_NULL], use),
            *granted(devices, use | landlock.IOCTL_DEVICE),
            *(
                landlock.Grant(number, landlock.READ_FILE)
                for number in readable
                if stat.S_ISREG(os.fstat(number).st_mode)
            ),
        ]
