"""Moves into control groups, made quick for those who start machines. Writes this process's number to its own group.

Before it moves a process the kernel waits until every processor has taken notice (a grace period): ten milliseconds,
of which a start has several, one after the other. It need not for moves that follow soon. So while machines are
started this process is moved, again and again, to the group where it is: that has no effect but to keep the kernel
ready. The wait falls into the time in which all else is prepared.

Where the group of this process cannot be told for sure, as in some containers, nothing is done: starts take longer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.system import cgroups

_AGAIN_S = 0.004
"""The kernel stays ready for a grace period, which is never shorter than a few milliseconds."""


class Readiness:
    """`touch` keeps the kernel ready for a moment. It is called in a thread of its own as long as anybody wants it."""

    def __init__(self, touch: Callable[[], None]) -> None:
        self._touch = touch
        self._changed = threading.Condition()
        self._wanted = 0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Processes will be moved while the block runs."""
        with self._changed:
            self._wanted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="moves", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._wanted -= 1
                self._changed.notify()

    def _work(self) -> None:
        while True:
            self._touch()
            with self._changed:
                if not self._changed.wait_for(lambda: self._wanted == 0, _AGAIN_S):
                    continue
                self._thread = None
                return


def stay() -> None:
    """Move this process to where it is."""
    group = _own_group(Path("/proc/self/cgroup").read_text())
    if group is not None:
        with contextlib.suppress(OSError):
            group.write_text(str(os.getpid()))


@functools.lru_cache(1)
def _own_group(own: str) -> Path | None:
    """The list of members that this process is in. Looked for again when it has been moved."""
    for path in cgroups.own_lists(own):
        with contextlib.suppress(OSError):
            if str(os.getpid()) in path.read_text().split():
                return path
    return None


_readiness = Readiness(stay)
expected = _readiness.wanted
"""Processes will be moved while the block runs, wherever it is."""
