"""Disks that refuse writes, and an agent in this process that is killed: from some write on it writes and removes
nothing any more. Whichever way it writes: at once, or through a Writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system import files


@contextmanager
def refused_writes(refuses: Callable[[Path], bool], why: str = "no space left on device") -> Iterator[None]:
    """While the block runs, writes of files that are refused fail. Each is asked about once, in order."""
    together = files.write_together

    def write(writes: Sequence[files.Write]) -> list[HostFailure | None]:
        return [HostFailure(why) if refuses(one.path) else together([one])[0] for one in writes]

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
