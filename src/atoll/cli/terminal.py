"""What may be written to a terminal, and how. Pure but for `columns_of`, which asks how wide it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

NARROWEST = 16
"""A column that is narrower is left to the terminal to break."""


def has_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """A terminal that can, or a user who wants it anywhere; and who did not say no (https://no-color.org)."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    return stream.isatty() and environment.get("TERM", "") != "dumb"


def columns_of(stream: TextIO) -> int | None:
    """How wide the terminal is; None: it is none."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or 80) if stream.isatty() else None
    except (OSError, ValueError):
        return None


def clipped(text: str, width: int) -> str:
    """At most so many columns of it; an ellipsis stands for the rest."""
    if width_of(text) <= width:
        return text
    taken, used = [], 1
    for char in text:
        used += width_of(char)
        if used > width:
            break
        taken.append(char)
    return "".join(taken) + "…"


def wrapped(text: str, width: int, indent: int) -> str:
    """In lines of so many columns, all but the first indented. Words stay whole: they are there to be copied."""
    from textwrap import wrap

    if width_of(text) <= width or width < NARROWEST:
        return text
    lines = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def painted(text: str, code: str, colour: bool) -> str:
    """The text in an ANSI colour or weight, where there is colour."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def printable(text: str) -> str:
    """On one line, and without what a terminal would take for a command."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else escaped(char) for char in text)


def escaped(char: str) -> str:
    """A character as JSON and YAML both write it within quotes, or nearly: above U+FFFF as YAML does."""
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    if short:
        return short
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def width_of(text: str) -> int:
    """Columns that the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
