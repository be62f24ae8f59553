"""What a program reads and says, in anonymous memory files. Opens those.

Not pipes: nothing can fill up, and a detached child that keeps a descriptor open holds nobody up.
"""

from __future__ import annotations

import contextlib
import os

from msgspec import Struct

from atoll.system.failures import failing

Stdio = tuple[int, int, int]
"""Descriptors of standard input, output and error."""


class Completed(Struct, frozen=True):
    """How a program ended, and what it said."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Capture:
    """Standard input from memory, standard output and error into memory."""

    def __init__(self, stdin: bytes) -> None:
        with contextlib.ExitStack() as stack, failing("opening files for a program"):
            self.stdin, self.stdout, self.stderr = (
                stack.enter_context(os.fdopen(os.memfd_create(name), "w+b"))
                for name in ("stdin", "stdout", "stderr")
            )
            self.stdin.write(stdin)
            self.stdin.seek(0)
            self._files = stack.pop_all()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def stdio(self, output: int | None = None) -> Stdio:
        """The descriptors for a program; `output`, if given, takes its standard output instead of us."""
        out = self.stdout.fileno() if output is None else output
        return self.stdin.fileno(), out, self.stderr.fileno()

    def completed(self, returncode: int) -> Completed:
        # The program moved the position that it shares with us.
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return Completed(returncode, self.stdout.read(), self.stderr.read())
