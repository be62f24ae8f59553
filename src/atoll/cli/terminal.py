"""What may be written to a terminal, and how. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def has_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """A terminal that can, and a user who did not say no (https://no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM", "") != "dumb"


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
