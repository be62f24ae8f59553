"""Progress on standard error: one live line on a terminal, otherwise one plain line per stage.

Pure: what the line says. Effects: writes to the stream; a thread redraws the line ten times a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from atoll.api.hypervisor import Progress as Stage
from atoll.api.route import Done
from atoll.cli.terminal import has_colour, painted, width_of
from atoll.errors import Unreachable
from atoll.model.vm import STAGES, VM

if TYPE_CHECKING:
    import threading

INTERVAL_S = 0.1
HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"
ERASE_LINE = "\r\x1b[2K"


class Signs:
    """What the line is drawn with, where the terminal's encoding has it."""

    def __init__(self, encoding: str | None) -> None:
        fancy = (encoding or "").lower().replace("-", "") == "utf8"
        self.frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if fancy else "|/-\\"
        self.done = "✓" if fancy else "ok"
        self.failed = "✗" if fancy else "failed"
        self.dot = "·" if fancy else "-"
        self.more = "…" if fancy else "..."


def stages_ahead(wait_for: str | None, stages: tuple[str, ...] = STAGES) -> tuple[str, ...]:
    """What a VM goes through, up to the stage that ends the wait."""
    if wait_for in stages:
        return stages[: stages.index(wait_for) + 1]
    return (*stages, wait_for) if wait_for else stages


def stages_text(reached: Mapping[str, float], upcoming: str, signs: Signs) -> str:
    """address 0.01 · started 0.12 · dhcp …"""
    parts = [f"{stage} {elapsed_s:.2f}" for stage, elapsed_s in reached.items()]
    if upcoming:
        parts.append(f"{upcoming} {signs.more}")
    return f" {signs.dot} ".join(parts)


def clipped(text: str, columns: int, signs: Signs) -> str:
    """At most so many columns: a line that wraps cannot be drawn over."""
    if width_of(text) <= columns:
        return text
    return text[: max(0, columns - len(signs.more))] + signs.more


class Progress:
    """Follows one VM through the stages ahead. Left before `done`, the line ends as failed."""

    def __init__(
        self,
        name: str,
        stream: TextIO,
        *,
        ahead: Sequence[str] = (),
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._name = name
        self._stream = stream
        self._ahead = ahead
        self._quiet = quiet
        self._clock = clock
        self._live = stream.isatty() and not quiet and environment.get("TERM", "") != "dumb"
        self._colour = has_colour(stream, environment)
        self._signs = Signs(stream.encoding)
        self._reached: dict[str, float] = {}
        self._began = clock()
        self._ip = ""
        self._ended = False
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def ip(self) -> str:
        """The address of the VM, once it has one."""
        return self._ip

    def __enter__(self) -> Self:
        if self._live:
            import threading

            self._write(HIDE_CURSOR)
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._redraw, args=(self._stop,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self._end(self._signs.failed, "31", "")

    def reached(self, stage: str, elapsed_s: float, ip: str) -> None:
        self._reached[stage] = elapsed_s
        self._ip = ip
        if not self._live and not self._quiet:
            self._write(f"{self._name}: {stage} {elapsed_s:.2f}s\n")

    def done(self) -> None:
        self._end(self._signs.done, "32", self._ip)

    def line(self, frame: int, columns: int) -> str:
        """The live line at this moment."""
        sign = self._signs.frames[frame % len(self._signs.frames)]
        upcoming = next((stage for stage in self._ahead if stage not in self._reached), "")
        stages = stages_text(self._reached, upcoming, self._signs)
        return clipped(f"{self._name}  {sign} {self._elapsed_s():.1f}s  {stages}", columns, self._signs)

    def _end(self, sign: str, colour: str, ip: str) -> None:
        self._ended = True
        if self._stop is None or self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        words = [f"{self._elapsed_s():.1f}s", ip, stages_text(self._reached, "", self._signs)]
        room = self._columns() - width_of(f"{self._name}  {sign} ")
        text = clipped("  ".join(word for word in words if word), room, self._signs)
        self._write(f"{ERASE_LINE}{SHOW_CURSOR}{self._name}  {painted(sign, colour, self._colour)} {text}\n")

    def _redraw(self, stop: threading.Event) -> None:
        frame = 0
        while not stop.is_set():
            self._write(ERASE_LINE + self.line(frame, self._columns() - 1))
            frame += 1
            stop.wait(INTERVAL_S)

    def _elapsed_s(self) -> float:
        return self._clock() - self._began

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def follow(lines: Iterator[Stage | Done[VM]], progress: Progress) -> VM:
    """The VM at the end of a stream whose stages go to the progress line."""
    for line in lines:
        if isinstance(line, Done):
            progress.done()
            return line.result
        progress.reached(line.stage, line.elapsed_s, line.ip)
    raise Unreachable("the stream ended before its result", hint="see: atoll status, then: atoll vm list")
