"""A command that is run in a guest: what, as whom, where, on which terminal. Pure values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import check_pattern

MAX_WORDS = 1024
MAX_VARIABLES = 512
MAX_BYTES = 24 << 10
"""Of all words, variables and names of one command together."""
MAX_TIMEOUT_S = 7 * 86_400.0
VARIABLE_PATTERN = r"[A-Za-z_][A-Za-z0-9_.-]{0,127}"
USER_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}"

TIMED_OUT = 124
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""Exit statuses that are not the command's own, as timeout(1) and shells have them."""
SIGNALLED = 128
"""Added to the number of the signal that ended a command."""


class Size(Struct, frozen=True, forbid_unknown_fields=True):
    """That of a terminal, in characters."""

    rows: Annotated[int, Meta(ge=1, le=4096)] = 24
    columns: Annotated[int, Meta(ge=1, le=4096)] = 80


class Command(Struct, frozen=True, forbid_unknown_fields=True):
    """What to run, and how."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_WORDS)]
    env: Annotated[dict[str, str], Meta(max_length=MAX_VARIABLES), Meta(extra={"secret": True})] = {}
    """Added to what every command of the guest has. Kept out of logs and errors."""
    user: Annotated[str, Meta(max_length=32)] = ""
    """A name or number that the guest knows; empty: root."""
    cwd: Annotated[str, Meta(max_length=4096)] = ""
    """Empty: the home of the user, where there is one."""
    input: bool = False
    """Its standard input is the caller's; else there is none."""
    terminal: Size | None = None
    """It runs on a terminal of this size, where all that it writes is one stream."""
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0] or len(self.argv) > MAX_WORDS:
            raise Invalid("argv", self.argv[:1], f"must be a program and at most {MAX_WORDS} words in all")
        if len(self.env) > MAX_VARIABLES:
            raise Invalid("env", len(self.env), f"must be at most {MAX_VARIABLES} variables")
        for name in self.env:
            check_pattern("env", name, VARIABLE_PATTERN, "the name of a variable")
        if self.user:
            check_pattern("user", self.user, USER_PATTERN, "the name or number of a user")
        if self.cwd and not self.cwd.startswith("/"):
            raise Invalid("cwd", self.cwd, "must begin with /", hint="for example: --cwd /tmp")
        texts = (*self.argv, *self.env, *self.env.values(), self.cwd)
        if any("\0" in text for text in texts):
            raise Invalid("argv", self.argv[0], "no word or variable may hold a zero byte")
        size = sum(len(_bytes(text)) + 1 for text in texts)
        if size > MAX_BYTES:
            raise Invalid(
                "argv", f"{size} bytes", f"words and variables may be {MAX_BYTES} bytes in all",
                hint="send more on its standard input: atoll vm exec -i",
            )  # fmt: skip
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise Invalid("timeout_s", self.timeout_s, f"must be above 0 and at most {MAX_TIMEOUT_S:g}")


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid("argv", ascii(text), "is not text in UTF-8") from None
