"""Collects children that outlive the call that started them, all of them in one thread. Waits for processes.

A process that ended stays in the process table until its parent has asked how it ended. Whoever starts one and goes
on hands it over here. Each costs one descriptor while it runs.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading


class Reaper:
    """Its thread starts with the first child, and waits as long as this process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._epoll: select.epoll | None = None

    @property
    def waiting(self) -> int:
        """How many children have not been collected yet."""
        return len(self._children)

    def take(self, child: subprocess.Popen[bytes]) -> None:
        """Collect this child when it ends. From any thread."""
        try:
            handle = os.pidfd_open(child.pid)
        except (
            OSError
        ):  # out of descriptors: a thread of its own is the price, a lost child would be a higher one
            threading.Thread(target=child.wait, name=f"reap-{child.pid}", daemon=True).start()
            return
        with self._lock:
            self._children[handle] = child
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._work, args=(self._epoll,), name="reaper", daemon=True).start()
            self._epoll.register(handle, select.EPOLLIN)

    def _work(self, epoll: select.epoll) -> None:
        while True:
            for handle, _ in epoll.poll():
                with self._lock:
                    child = self._children.pop(handle)
                    epoll.unregister(handle)
                    os.close(handle)
                child.wait()


_reaper = Reaper()


def take(child: subprocess.Popen[bytes]) -> None:
    """Collect this child when it ends, beside all others of this process."""
    _reaper.take(child)
