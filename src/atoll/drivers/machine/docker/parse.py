"""What a Docker Engine answers, understood. Pure. Podman answers the same, as far as it is asked."""

from __future__ import annotations

import re
from signal import SIGINT, SIGTERM

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Exit
from atoll.errors import HostFailure
from atoll.model.command import NOT_EXECUTABLE, NOT_FOUND

# What an engine ends with, when it is asked to and does nothing about the signal.
_ASKED_TO = (128 + SIGTERM, 128 + SIGINT)


class State(Struct, frozen=True, rename="pascal"):
    """How a container is. `pid` is 0 unless it runs."""

    status: str
    running: bool
    pid: int
    exit_code: int
    paused: bool = False

    @property
    def is_up(self) -> bool:
        """Whether it runs, or would if it were not held. Podman says of one that is held that it does not run."""
        return self.running or self.paused

    @property
    def never_ran(self) -> bool:
        return self.status in ("created", "configured", "initialized")  # the last two are Podman's


class Config(Struct, frozen=True, rename="pascal"):
    """What a container was made with."""

    labels: dict[str, str] | None = None


class Storage(Struct, frozen=True, rename="pascal"):
    """Where an engine keeps a container's root."""

    data: dict[str, str] | None = None


class Container(Struct, frozen=True, rename="pascal"):
    """A container, as far as we care."""

    id: str
    state: State
    config: Config = Config()
    graph_driver: Storage = Storage()

    @property
    def changes(self) -> str:
        """The directory with what it changed of its image; empty where the engine does not say so."""
        return (self.graph_driver.data or {}).get("UpperDir", "")

    def label(self, name: str) -> str:
        return (self.config.labels or {}).get(name, "")


class Summary(Struct, frozen=True, rename="pascal"):
    """A container or an image in a list."""

    id: str
    labels: dict[str, str]
    names: tuple[str, ...] | None = None
    repo_tags: tuple[str, ...] | None = None
    """The references to an image."""

    @property
    def name(self) -> str:
        return self.names[0].removeprefix("/") if self.names else ""


class Component(Struct, frozen=True, rename="pascal"):
    """A part of an engine."""

    name: str = ""


class Version(Struct, frozen=True):
    """Which versions of its API an engine speaks."""

    newest: str = msgspec.field(name="ApiVersion")
    oldest: str = msgspec.field(name="MinAPIVersion", default="1.12")
    engine: str = msgspec.field(name="Version", default="")
    components: tuple[Component, ...] | None = msgspec.field(name="Components", default=())

    @property
    def mounts_anew(self) -> bool:
        """Whether its mounts of folders have the options that it is told, and not those of the folder. Podman's do."""
        return any("podman" in one.name.lower() for one in self.components or ())


class Info(Struct, frozen=True, rename="pascal"):
    """How an engine confines containers."""

    cgroup_driver: str = "cgroupfs"
    security_options: tuple[str, ...] | None = ()
    driver: str = ""
    """What keeps roots: overlay2, for one."""
    docker_root_dir: str = ""

    def has(self, option: str) -> bool:
        """Whether it has a security option, such as seccomp or userns."""
        return any(f"name={option}" in entry.split(",") for entry in self.security_options or ())


class Exec(Struct, frozen=True):
    """A command in a container."""

    running: bool = msgspec.field(name="Running", default=False)
    status: int | None = msgspec.field(name="ExitCode", default=None)
    pid: int = msgspec.field(name="Pid", default=0)


COMPLAINT = b"OCI runtime exec failed"
"""How an engine begins to say that it could not run a command."""
_NOT_THERE = (b"no such file or directory", b"executable file not found")


def status_of(complaint: bytes, status: int) -> int:
    """The exit status of a command that the engine could not run; 0 when it did, and the words are the command's."""
    if status not in (NOT_EXECUTABLE, NOT_FOUND):
        return 0
    return NOT_FOUND if any(words in complaint.lower() for words in _NOT_THERE) else NOT_EXECUTABLE


FRAME_HEAD = 8
MOST_FRAME = 1 << 20


def frame_of(head: bytes) -> tuple[int, int]:
    """The stream and the size of the piece that follows, of a command without a terminal."""
    stream, size = head[0], int.from_bytes(head[4:8], "big")
    if stream not in (1, 2) or head[1:4] != b"\0\0\0" or size > MOST_FRAME:
        raise HostFailure("container engine: what a command wrote comes in no known form")
    return stream, size


class Frames:
    """What a command without a terminal wrote, out of bytes in pieces of any size."""

    def __init__(self) -> None:
        self._head = b""
        self._stream = 1
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """What was whole enough to be passed on, with its streams; as much at once as came together."""
        found: list[tuple[int, list[memoryview]]] = []
        rest = memoryview(data)
        while rest:
            if self._left:
                piece, rest = rest[: self._left], rest[self._left :]
                self._left -= len(piece)
                if not found or found[-1][0] != self._stream:
                    found.append((self._stream, []))
                found[-1][1].append(piece)
                continue
            missing = FRAME_HEAD - len(self._head)
            self._head += bytes(rest[:missing])
            rest = rest[missing:]
            if len(self._head) == FRAME_HEAD:
                self._stream, self._left = frame_of(self._head)
                self._head = b""
        return [(stream, b"".join(pieces)) for stream, pieces in found]


def is_command_monitor(cmdline: bytes) -> bool:
    """Whether a process with these words is what Podman watches a command in a container with."""
    words = cmdline.split(b"\0")
    return words[0].endswith(b"conmon") and any(word.endswith(b"/exec_pid") for word in words)


def choose_version(wanted: str, version: Version) -> str:
    """The API version to speak: the one that we were written for, or the nearest that the engine knows."""
    return max(min(wanted, version.newest, key=_ordered), version.oldest, key=_ordered)


def exit_of(status: int) -> Exit:
    """Why a container ended, from its exit status. One that leaves at a request did what it was asked to."""
    return Exit.POWERED_OFF if status == 0 or status in _ASKED_TO else Exit.CRASHED


def said(body: bytes) -> str:
    """The message of an engine that refused."""
    try:
        message = msgspec.json.decode(body)["message"]
        return str(message).strip()
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:200] or "it did not say why"


def check_import(lines: bytes) -> None:
    """An import answers with lines, and a failure is one of them."""
    for line in lines.splitlines():
        found = re.search(rb'"error"\s*:\s*"((?:[^"\\]|\\.)*)"', line)
        if found:
            raise HostFailure(
                f"handing an image to the container engine: {found[1].decode(errors='replace')}"
            )


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
