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
    """Its thread starts with the first child, unless it was told to begin before, and waits as long as this process
    lives."""

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
            self._begun().register(handle, select.EPOLLIN)

    def begin(self) -> None:
        """Have the thread now, in the namespaces of this one."""
        with self._lock:
            self._begun()

    def _begun(self) -> select.epoll:
        if self._epoll is None:
            self._epoll = select.epoll()
            threading.Thread(target=self._work, args=(self._epoll,), name="reaper", daemon=True).start()
        return self._epoll

    def _work(self, epoll: select.epoll) -> None:
        while True:
            for handle, _ in epoll.poll():
                with self._lock:
                    child = self._children.pop(handle)
                    epoll.unregister(handle)
                    os.close(handle)
                child.wait()


_reaper = Reaper()


def begin() -> None:
    """To be called before a child is started in a thread that has namespaces of its own: a thread that began there
    would keep them, and their mounts, as long as this process lives."""
    _reaper.begin()


def take(child: subprocess.Popen[bytes]) -> None:
    """Collect this child when it ends, beside all others of this process."""
    _reaper.take(child)
