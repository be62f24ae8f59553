"""Many files at once, each whole and on disk or not there: one wait for the disk serves all of them. Writes files.

A file is written in a directory of its own first, put on disk, and then given its name. What a killed process left in
that directory is removed by the next one that comes when nobody else is at work there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from atoll.system import files, libc, steps
from atoll.system.failures import failing

INCOMING = ".incoming"
_FEW = 8
"""So many files are put on disk one by one; for more, all of their file system costs less."""


class Bulk:
    """Files below one root, on one file system. May be used by several threads, and by several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / INCOMING
        files.make_dirs(self._incoming)
        with failing(f"opening {self._incoming}"):
            self._descriptor = os.open(self._incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._clear()

    def close(self) -> None:
        """No more writes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, items: Sequence[tuple[str, bytes]], mode: int = 0o600) -> None:
        """Files by their paths below the root, in directories that are there or are made now.

        HostFailure when it cannot be: then some of them may be there, each of them whole.
        """
        if not items:
            return
        with failing(f"writing {len(items)} files below {self._root}"):
            few = len(items) <= _FEW
            steps.step("bulk.begun")
            written: list[str] = []
            try:
                for _, data in items:
                    name = f"{self._incoming}/{secrets.token_hex(12)}"
                    written.append(name)
                    _write(name, data, mode, sync=few)
                steps.step("bulk.written")
                if not few:
                    libc.syncfs(self._descriptor)
                steps.step("bulk.synced")
                self._name(items, written, few)
                steps.step("bulk.done")
            except BaseException:
                for name in written:
                    with contextlib.suppress(OSError):
                        os.unlink(name)  # noqa: PTH108, a Path for each costs as much as the call
                raise

    def _name(self, items: Sequence[tuple[str, bytes]], written: Sequence[str], few: bool) -> None:
        directories = {path.rpartition("/")[0] for path, _ in items}
        for directory in directories:
            files.make_dirs(self._root / directory)
        for (path, _), name in zip(items, written, strict=True):
            os.rename(name, f"{self._root}/{path}")  # noqa: PTH104
            steps.step("bulk.named")
        if few:
            for directory in directories:
                files.sync_dir(self._root / directory)
        else:
            libc.syncfs(self._descriptor)

    def _clear(self) -> None:
        with failing(f"tidying {self._incoming}"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # others are at work: what is there may be theirs
            else:
                for left in self._incoming.iterdir():
                    left.unlink(missing_ok=True)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)


def _write(name: str, data: bytes, mode: int, *, sync: bool) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        files.write_whole(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
