"""How a content is cut into pieces and holes. Pure, but for whoever takes the pieces.

Up to PIECE_BYTES a content is one piece. A longer one is cut at multiples of that, and in each such window zeros of
whole grains are holes. It depends on the bytes alone: a disk that is sparse and a copy of it that is not are cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from atoll.model.tree import GRAIN_BYTES, PIECE_BYTES, Content, Hole, Part, Piece

Take: TypeAlias = Callable[[bytes], Piece]
"""Whoever is given the bytes of a piece, and says which one it is: `Intake.take`, or `hashed`."""

_ZEROS = bytes(PIECE_BYTES)
_GRAIN = bytes(GRAIN_BYTES)


def cut(size: int, windows: Iterable[bytes | int], take: Take) -> Content:
    """A content of this size, from its windows in order: PIECE_BYTES each, the last one what is left.

    A number is that many zeros, any multiple of a window, which nobody had to read.
    """
    parts: list[Part] = []
    zeros = total = 0
    for window in windows:
        for run in _runs(window, whole=size <= PIECE_BYTES):
            if isinstance(run, int):
                zeros += run
                total += run
                continue
            if zeros:
                parts.append(Hole(zeros))
                zeros = 0
            parts.append(take(run))
            total += len(run)
    if zeros:
        parts.append(Hole(zeros))
    assert total == size, (total, size)
    return Content(size, tuple(parts))


def _runs(window: bytes | int, *, whole: bool) -> Iterator[bytes | int]:
    """Bytes that are a piece, and numbers of zeros."""
    if isinstance(window, int):
        yield window
    elif not any(window[:64]) and window == _ZEROS[: len(window)]:
        yield len(window)
    elif whole:
        yield window
    else:
        yield from _grains(window)


def _grains(window: bytes) -> Iterator[bytes | int]:
    start = at = 0
    while at < len(window):
        grain = window[at : at + GRAIN_BYTES]
        if grain != _GRAIN[: len(grain)]:
            at += len(grain)
            continue
        if start < at:
            yield window[start:at]
        yield len(grain)
        at += len(grain)
        start = at
    if start < at:
        yield window[start:at] if start else window
