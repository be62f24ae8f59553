"""A screen that follows what happens: the whole terminal for a while, and what was on it afterwards.

Effects: the terminal's modes and alternate screen; a thread that reads the node's events.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.cli.context import Context, current_tls
from atoll.cli.terminal import clipped
from atoll.errors import AtollError, Malformed

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
SETTLE_S = 0.2
"""Between two pictures: more often nobody can read them."""
RETRY_S = 1.0


def check_terminal(what: str, instead: str) -> None:
    if not sys.stdout.isatty():
        raise Malformed(f"{what}: standard output is no terminal", hint=f"for scripts there is: {instead}")


class Screen:
    """The terminal for as long as a block runs. It is as it was afterwards, however the block ends."""

    def __init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._modes: list[Any] | None = None

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError, termios.error):
            if sys.stdin.isatty():
                self._modes = termios.tcgetattr(0)
                tty.setcbreak(0, termios.TCSANOW)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def wake(self) -> None:
        """From any thread: there is something new to draw."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def draw(self, lines: list[str]) -> None:
        """From the top; what does not fit the screen is not shown."""
        size = os.get_terminal_size(sys.stdout.fileno())
        rows = [line if "\x1b" in line else clipped(line, size.columns) for line in lines[: size.lines - 1]]
        sys.stdout.write("\x1b[H" + "".join(f"{row}\x1b[K\r\n" for row in rows) + "\x1b[J")
        sys.stdout.flush()

    def key(self, timeout_s: float, *, wakes: bool = True) -> str:
        """The next key; empty when there was something new, or nothing for so long."""
        sources = [self._wake_read] if wakes else []
        if self._modes is not None:
            sources.append(0)
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._wake_read in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return os.read(0, 1).decode(errors="replace") if 0 in ready else ""


def wake_on_events(context: Context, screen: Screen) -> None:
    """In the background: wake the screen with every event of the node, also after its agent was restarted."""

    def follow() -> None:
        while True:
            with suppress(AtollError), Client(context.addresses, current_tls(context)) as client:
                for _ in client.stream(api.EVENTS, query=api.Since()):
                    screen.wake()
            time.sleep(RETRY_S)
            screen.wake()

    threading.Thread(target=follow, daemon=True).start()
