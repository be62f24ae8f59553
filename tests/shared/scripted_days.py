r"""Days of people at the command, written down line by line, and a way to live through them.

A line says who types it, what they look at, how it ends, and what they type:

    ann   80    0      vm stop $vm  <- [y/N]: y\n  => stopped

WHO     ann (she owns the VM), bob (another user), ops (an operator); several with commas, `all` for everybody
LOOK    80 or 60 (a terminal of so many columns), pipe (no terminal), all (each of these in turn)
STATUS  the exit status; on kinds that differ: that on qemu/lxc/docker
<- TEXT: KEYS   once TEXT is seen, type KEYS, with escapes as Python has them; may be repeated
=> TEXT         TEXT is in what it prints; may be repeated
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import TYPE_CHECKING

from terminals import opened

if TYPE_CHECKING:
    from tests.host.conftest import Cli

KINDS = ("qemu", "lxc", "docker")
PEOPLE = ("ann", "bob", "ops")
LOOKS = ("pipe", "80", "60")
PATIENCE_S = 90.0
OURS = range(1, 10)
"""Exit statuses that come with words of ours; others are those of a command in a guest, or of an interrupt."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>78]")
_PART = re.compile(r"\s(<-|=>)\s+")


@dataclass(frozen=True)
class Line:
    """What one person does once, on one screen."""

    who: str
    columns: int | None
    """None: no terminal."""
    status: int
    words: tuple[str, ...]
    typing: tuple[tuple[str, str], ...]
    seen: tuple[str, ...]

    @property
    def is_guests(self) -> bool:
        """Whether its exit status can be that of a command in a guest."""
        return self.words[:2] in (("vm", "exec"), ("vm", "shell"))

    @property
    def is_table(self) -> bool:
        """Whether all that it prints is ours, and for this screen."""
        copied = {("completion",), ("help",), ("vm", "exec"), ("vm", "log")}
        return not self.typing and not {self.words[:1], self.words[:2]} & copied

    def __str__(self) -> str:
        return f"{self.who}, {self.columns or 'no terminal'}: atoll {shlex.join(self.words)}"


def lines_of(script: str, kind: str, names: Mapping[str, str]) -> Iterator[Line]:
    """All that happens on a day, in order."""
    for text in script.splitlines():
        text = text.partition(" # ")[0].strip()
        if not text or text.startswith("#"):
            continue
        command, *parts = _PART.split(Template(text).substitute(names, kind=kind))
        who, look, statuses, *rest = command.split(None, 3)
        status = [*statuses.split("/")] * len(KINDS)
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        for person in PEOPLE if who == "all" else who.split(","):
            for columns in LOOKS if look == "all" else (look,):
                yield Line(
                    person,
                    None if columns == "pipe" else int(columns),
                    int(status[KINDS.index(kind)]),
                    tuple(shlex.split(rest[0] if rest else "")),
                    tuple(_typing(part) for mark, part in pairs if mark == "<-"),
                    tuple(part.strip() for mark, part in pairs if mark == "=>"),
                )


def _typing(part: str) -> tuple[str, str]:
    text, _, keys = part.strip().rpartition(": ")
    return text, keys.encode().decode("unicode_escape")


def commands_of(script: str) -> set[str]:
    """The words that each line begins with, for who asks whether all commands are there."""
    return {
        " ".join(line.words[:length])
        for kind in KINDS
        for line in lines_of(script, kind, _AnyName())
        for length in (1, 2)
    }


class _AnyName(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def live(line: Line, cloud: Cli) -> str:
    """Type it, and see that it ends as it should; what it printed."""
    status, said = _at_a_terminal(line, cloud) if line.columns else _piped(line, cloud)
    told = f"{line}\nended with {status}:\n{said}"
    assert status == line.status, told
    assert "Traceback" not in said, told
    assert line.is_guests or status not in OURS or "atoll: " in said, told
    for text in line.seen:
        assert text in said, f"no {text!r}: {told}"
    if line.columns and line.is_table and status == 0:
        # A word that is too long for a line is left whole, to be copied.
        wide = [row for row in said.splitlines() if len(row) > line.columns and len(row.split()[-1]) < 40]
        assert not wide, f"too wide: {wide}: {told}"
    return said


def _piped(line: Line, cloud: Cli) -> tuple[int, str]:
    with cloud.start(*line.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except BaseException:
            process.kill()
            raise
    return process.returncode, said.decode(errors="replace")


def _at_a_terminal(line: Line, cloud: Cli) -> tuple[int, str]:
    assert line.columns is not None
    master, slave = opened(line.columns)
    # Their own session and terminal, so that Ctrl-C is what it is at a desk.
    desk = replace(cloud, prefix=("setsid", "--ctty", *cloud.prefix))
    typing = desk.start(*line.words, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    with typing as process:
        try:
            said = _talk(master, line.typing)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            os.close(master)
    return process.returncode, _ESCAPES.sub("", said).replace("\r\n", "\n").replace("\r", "\n")


def _talk(master: int, typing: Sequence[tuple[str, str]]) -> str:
    """Type each text once what it waits for is there; all that was seen until the program had gone."""
    said, after, until = b"", 0, time.monotonic() + PATIENCE_S
    left = list(typing)
    while True:
        if left and (found := said.find(left[0][0].encode(), after)) >= 0:
            after = found + 1
            os.write(master, left.pop(0)[1].encode())
        rest = until - time.monotonic()
        assert select.select([master], [], [], max(0, rest))[0], f"it does not end: {said!r}"
        try:
            more = os.read(master, 65536)
        except OSError:
            assert not left, f"{left[0][0]!r} never came: {said!r}"
            return said.decode(errors="replace")
        said += more
