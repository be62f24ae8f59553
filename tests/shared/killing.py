"""Disks that refuse writes, and an agent in this process that is killed: from some write on it writes and removes
nothing any more, whichever way it writes: at once, or through a Writer; or its disk is kept as it was then."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system import files
from atoll.system.spares import Spares


@contextmanager
def refused_writes(refuses: Callable[[Path], bool], why: str = "no space left on device") -> Iterator[None]:
    """While the block runs, writes of files that are refused fail. Each is asked about once, in order."""
    together = files.write_together

    def write(writes: Sequence[files.Write], spares: Spares | None = None) -> list[HostFailure | None]:
        return [HostFailure(why) if refuses(one.path) else together([one], spares)[0] for one in writes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_together", write)
        yield


@contextmanager
def killed_at_write(nth: int) -> Iterator[None]:
    """While the block runs."""
    count = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch, refused_writes(lambda path: next(count) >= nth, "killed"):
        patch.setattr(files, "remove_tree", lambda path, *_: None)
        patch.setattr("atoll.hypervisor.vms.records.Records._bury", lambda self, ip: None)
        yield


class Disk:
    """Directories as they are at one moment: those that an agent which is killed then leaves to the next."""

    def __init__(self, directories: Sequence[Path], kept: Path) -> None:
        self._directories = directories
        self._kept = kept

    def keep(self) -> None:
        """Whatever is done to them from now on is undone by `restore`. Other threads may be at work in them."""
        while True:
            before = self._names()
            shutil.rmtree(self._kept, ignore_errors=True)
            self._kept.mkdir()
            for number, directory in enumerate(self._directories):
                if directory.exists():
                    _copy(directory, self._kept / str(number))
            if self._names() == before:
                return

    def restore(self) -> None:
        for number, directory in enumerate(self._directories):
            shutil.rmtree(directory, ignore_errors=True)
            if (self._kept / str(number)).exists():
                (self._kept / str(number)).rename(directory)
        self._kept.rmdir()

    def _names(self) -> list[str]:
        return sorted(
            os.path.join(place, name)
            for directory in self._directories
            for place, below, within in os.walk(directory)
            for name in (*below, *within)
        )


def _copy(source: Path, target: Path) -> None:
    target.mkdir(source.stat().st_mode & 0o777, parents=True)
    for path in list(source.iterdir()):
        try:
            if path.is_dir():
                _copy(path, target / path.name)
            else:
                shutil.copy2(path, target / path.name)
        except FileNotFoundError:
            continue  # it has just gone
