"""What a tree of files takes on disk, where a guest made it. Reads directories; goes through no link.

The guest may change the tree meanwhile, and may have made it as large or deep as it could: the looking ends when more
was found than is allowed, or deeper than anybody needs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

DEEPEST = 256
LEAST_BYTES = 4096
"""What an entry counts for at least: it takes an inode, and those are not without end either."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def measure(tree: Path, most: int) -> int:
    """Its bytes, as soon as they are more than `most`; one that is deeper than DEEPEST has more. Gone is none."""
    return _Measuring(most).within(None, str(tree), 0)


class _Measuring:
    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0

    def within(self, parent: int | None, name: str, depth: int) -> int:
        """What was found so far, this directory included."""
        if depth > DEEPEST:
            self._total = self._most + 1
        if self._total > self._most:
            return self._total
        try:
            directory = os.open(name, _FLAGS, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):  # it has just gone
            return self._total
        try:
            for inner in self._count(directory):
                self.within(directory, inner, depth + 1)
        finally:
            os.close(directory)
        return self._total

    def _count(self, directory: int) -> list[str]:
        """The directories in it, once all that is in it has been counted."""
        inner = []
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    self._total += max(LEAST_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(entry.name)
                if self._total > self._most:
                    return []
        return inner
