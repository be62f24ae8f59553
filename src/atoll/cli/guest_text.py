"""What a guest wrote, for a terminal: readable, and unable to do anything to it. Pure.

Colours pass. What moves the cursor, clears, switches character sets or asks the terminal something is left out; what
could carry a message (titles, the clipboard, other strings for terminals) and all other controls are shown: ^[ is an
escape, ^G a bell, \\u202e a mark that would turn the direction of writing.
"""

from __future__ import annotations

import codecs
import re

from atoll.cli.terminal import escaped

RESET = "\x1b[0m"
_LONGEST = 64
"""Of a sequence that is recognised. A longer one is text."""

_CSI = re.compile(r"\x1b\[([0-?]*)([ -/]*)([@-~])")
_SHORT = re.compile(r"\x1b[ -/]*[0-OQ-WYZ`-~]")
"""All others that are whole; strings for the terminal (ESC and one of ] P X ^ _ \\) and CSI are not among them."""
_BEGUN = re.compile(r"(?:\x1b(?:\[[0-?]*)?[ -/]*|\r+)\Z")
"""The end of a text that may go on as a sequence, or as the end of a line."""
_COLOURS = frozenset(
    (
        *range(5),
        7,
        9,
        *range(21, 26),
        27,
        29,
        *range(30, 38),
        *range(39, 48),
        49,
        *range(90, 98),
        *range(100, 108),
    )
)
"""Without blinking (5, 6) and without what hides text (8)."""


class GuestText:
    """Bytes in as they come, text for a terminal out. What is cut short waits for the rest of it."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._painted = False

    def feed(self, data: bytes) -> str:
        text = self._held + self._decoder.decode(data)
        begun = _BEGUN.search(text, max(0, len(text) - _LONGEST))
        end = begun.start() if begun is not None else len(text)
        self._held = text[end:]
        return self._shown(text[:end])

    def close(self) -> str:
        """What is left, and the terminal's own colour."""
        rest = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        shown = self._shown(rest)
        return shown + RESET if self._painted else shown

    def _shown(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                taken, part = self._sequence(text, at)
            elif char == "\r":
                # It would let what follows overwrite what is there: it ends the line, as a line feed after it does.
                taken = _line_end(text, at)
                part = "\n"
            else:
                taken, part = 1, _visible(char)
            parts.append(part)
            at += taken
        return "".join(parts)

    def _sequence(self, text: str, at: int) -> tuple[int, str]:
        """How long the sequence is that begins here, and what is written in its place."""
        if found := _CSI.match(text, at, at + _LONGEST):
            is_colour = found[3] == "m" and not found[2] and is_safe_colour(found[1])
            if not is_colour or not self._colour:
                return len(found[0]), ""
            self._painted = found[1] not in ("", "0")
            return len(found[0]), found[0]
        if found := _SHORT.match(text, at, at + _LONGEST):
            return len(found[0]), ""
        return 1, "^["


def is_safe_colour(parameters: str) -> bool:
    """Whether these parameters of SGR only paint: no blinking, nothing hidden."""
    if not re.fullmatch(r"[0-9;]*", parameters):
        return False
    codes = [int(code or 0) for code in parameters.split(";")]
    while codes:
        code = codes.pop(0)
        if code in (38, 48):
            kind = codes.pop(0) if codes else -1
            wanted = {5: 1, 2: 3}.get(kind)
            if wanted is None or len(codes) < wanted or any(part > 255 for part in codes[:wanted]):
                return False
            del codes[:wanted]
        elif code not in _COLOURS:
            return False
    return True


def _line_end(text: str, at: int) -> int:
    end = at
    while end < len(text) and text[end] == "\r":
        end += 1
    return end - at + (text[end : end + 1] == "\n")


def _visible(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    code = ord(char)
    return f"^{chr(code ^ 0x40)}" if code < 0x20 or code == 0x7F else escaped(char)
