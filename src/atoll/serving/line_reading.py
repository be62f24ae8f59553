"""Reading the last lines of a log that is written to. Effects: opens its parts in the writer's turn, reads aside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from atoll.system import aside
from atoll.system.line_log import LineLog
from atoll.system.writer import Writer

T = TypeVar("T")


async def last_of(
    lines: LineLog, writer: Writer, decode: Callable[[bytes], T], wanted: Callable[[T], bool], limit: int
) -> tuple[T, ...]:
    """The last so many that are wanted, the oldest first."""
    # Opened between two writes, so that no part is turned over meanwhile and seen twice; read beside the loop.
    parts = await writer.run(_open_all, lines.parts)
    return await aside.run(_last, parts, decode, wanted, limit)


def _open_all(paths: Iterable[Path]) -> list[IO[bytes]]:
    opened: list[IO[bytes]] = []
    for path in paths:
        with suppress(FileNotFoundError):
            opened.append(path.open("rb"))
    return opened


def _last(
    parts: Iterable[IO[bytes]], decode: Callable[[bytes], T], wanted: Callable[[T], bool], limit: int
) -> tuple[T, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(part) for part in parts]
        entries = (entry for part in opened for entry in _entries(part, decode))
        return tuple(deque((entry for entry in entries if wanted(entry)), maxlen=limit))


def _entries(part: Iterable[bytes], decode: Callable[[bytes], T]) -> Iterator[T]:
    for line in part:
        # A line that was cut short by a crash is none.
        with suppress(msgspec.MsgspecError):
            yield decode(line)
