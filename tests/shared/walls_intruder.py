"""An intruder in the place of a process: enters its namespaces as its user without any rights, and tries things.

    walls_intruder.py PID UID QUESTIONS      QUESTIONS is JSON; so is the answer, on standard output

There is no program in an empty root, so what tries is this interpreter, which has loaded all that it needs. Seccomp
and Landlock, which cannot be entered, are not around it: what it cannot do, it cannot do without them either.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_ENOUGH = 100

_libc = ctypes.CDLL(None, use_errno=True)


def enter(pid: int, uid: int) -> None:
    """Become a process like this one. Returns in a child, which is in the process namespace too."""
    target = os.pidfd_open(pid)
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
    if _libc.setns(target, _ALL) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.fchdir(root)
    os.chroot(".")
    os.closerange(3, 1024)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def outcome(attempt: Callable[[], Any]) -> Any:
    """What came of it, or the name of the error."""
    try:
        return attempt()
    except OSError as error:
        return type(error).__name__ if error.errno is None else f"E{error.errno} {os.strerror(error.errno)}"


def everything() -> list[str]:
    """The first files that can be found from the root."""
    found: list[str] = []
    places = ["/"]
    while places and len(found) < _ENOUGH:
        try:
            entries = list(os.scandir(places.pop()))
        except OSError:
            continue
        places += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        found += [entry.path for entry in entries if not entry.is_dir() and os.path.exists(entry.path)]
    return sorted(found)


def connect(family: int, address: Any) -> str:
    with socket.socket(family) as tried:
        tried.settimeout(1)
        tried.connect(address)
    return "connected"


def call(name: str, *args: object) -> str:
    if getattr(_libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
    return "done"


def answers(questions: dict[str, Any]) -> dict[str, Any]:
    numbers = questions["pids"]
    return {
        "files": everything(),
        "root": sorted(outcome(lambda: os.listdir("/"))),
        "proc": outcome(lambda: os.listdir("/proc")),
        "command line": {pid: outcome(lambda pid=pid: open(f"/proc/{pid}/cmdline").read()) for pid in numbers},
        "links": [name for _, name in socket.if_nameindex()],
        "tcp": [outcome(lambda to=to: connect(socket.AF_INET, tuple(to))) for to in questions["tcp"]],
        "abstract": outcome(lambda: connect(socket.AF_UNIX, "\0" + questions["abstract"])),
        "sockets": [outcome(lambda path=path: connect(socket.AF_UNIX, path)) for path in questions["sockets"]],
        "signals": {pid: outcome(lambda pid=pid: os.kill(pid, 0)) for pid in numbers},
        "kill": {pid: outcome(lambda pid=pid: os.kill(pid, 9)) for pid in numbers},
        "memory": outcome(lambda: call("shmget", questions["shared memory"], 0, 0)),
        "name": socket.gethostname(),
        "process": os.getpid(),
        "write": [
            outcome(lambda place=place: os.close(os.open(f"{place}/made", os.O_CREAT | os.O_WRONLY)))
            for place in ("", "/dev", "/start", "/tmp", "/dev/shm")
        ],
        "mount": outcome(lambda: call("mount", b"none", b"/dev", b"tmpfs", 0, None)),
        "namespaces": outcome(lambda: call("unshare", 0x00020000)),
        "root's": outcome(lambda: os.setuid(0)),
    }  # fmt: skip


def main(pid: int, uid: int, questions: dict[str, Any]) -> None:
    enter(pid, uid)
    print(json.dumps(answers(questions)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
