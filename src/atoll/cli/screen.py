"""What a guest's output does to the terminal that shows it. Pure.

A terminal answers some sequences as if somebody typed: shown again out of history, the answer would go to a
guest that has long stopped asking. Others change how the terminal behaves, until they are taken back.
"""

from __future__ import annotations

import re

# Status, attributes, window and mode reports; colours and settings; who are you.
_QUESTIONS = re.compile(
    rb"\x05|\x1bZ"
    rb"|\x1b\[[0-9;?>=]*(?:[cnxt]|\$p)"
    rb"|\x1b\][0-9;]*\?(?:\x07|\x1b\\)"
    rb"|\x1bP[+$]q[^\x1b\x07]*\x1b\\"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;?>=]{0,32}\$?|[\]P][^\x07\x1b]{0,256}\x1b?)?\Z")
_CHANGE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_LONGEST_CHANGE = 48

_OFF = {1, 9, 47, *range(1000, 1008), 1015, 1016, 1047, 1049, 2004}
"""Ordinarily: other cursor keys, reports of mouse and focus, the other screen, bracketed paste."""
_ON = {7, 25}
"""Ordinarily: wrapped lines, a cursor."""


class History:
    """Output of the past, as it can be shown again."""

    def __init__(self) -> None:
        self._held = b""

    def shown(self, data: bytes) -> bytes:
        text = self._held + data
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished else len(text)
        self._held = text[end:]
        return _QUESTIONS.sub(b"", text[:end])

    def rest(self) -> bytes:
        """What is left at its end: the beginning of what comes next."""
        held, self._held = self._held, b""
        return held


class Modes:
    """What output has changed in the terminal, and what takes it back."""

    def __init__(self) -> None:
        self._end = b""
        self._changed: set[int] = set()

    def note(self, data: bytes) -> None:
        text = self._end + data
        for numbers, change in _CHANGE.findall(text):
            for number in (int(each) for each in numbers.split(b";") if each):
                if number in (_OFF if change == b"h" else _ON):
                    self._changed.add(number)
                else:
                    self._changed.discard(number)
        self._end = text[-_LONGEST_CHANGE:]

    def undone(self) -> bytes:
        """Also colours, character sets and the keypad, which are cheap to put right unasked."""
        off = b"".join(b"\x1b[?%dl" % number for number in sorted(self._changed & _OFF))
        on = b"".join(b"\x1b[?%dh" % number for number in sorted(self._changed & _ON))
        return off + on + b"\x1b[0m\x0f\x1b(B\x1b>"
