"""How an agent is, and whether an attack did it any harm: memory, descriptors, threads, its log. Reads /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

import attack_figures
from atoll.api import hypervisor as api
from node_labs import Node

KEPT = 1.10
"""How much of its memory a process may have more afterwards."""
SPARE_MIB = 4.0 if attack_figures.INPUTS <= attack_figures.FEW_INPUTS else 0.0
"""And besides, of an agent that was not long at work: each of its threads gets an arena of its own, and keeps it."""
SPARE_DESCRIPTORS = 4
"""A call of our own that just ends, a log that is looked at."""
POOLED_THREADS = 48
"""Pools begin their threads when they first need them, and keep them: all of an agent's pools have fewer than this."""
BACK_S = 30.0
LOG_BYTES = 40_000
"""What one attack may write: each source and each kind of complaint once a minute."""


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Vitals(Struct, frozen=True):
    resident_mib: float
    descriptors: int
    threads: int

    @staticmethod
    def of(pid: int) -> Vitals:
        return Vitals(
            resident_mib(pid),
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
        )

    def harm_since(self, before: Vitals) -> list[str]:
        """What is not as it was."""
        found = []
        if self.resident_mib > before.resident_mib * KEPT + SPARE_MIB:
            found.append(f"memory: {before.resident_mib:.1f} MiB before, {self.resident_mib:.1f} MiB after")
        if self.descriptors > before.descriptors + SPARE_DESCRIPTORS:
            found.append(f"descriptors: {before.descriptors} before, {self.descriptors} after")
        if self.threads > max(before.threads, POOLED_THREADS):
            found.append(f"threads: {before.threads} before, {self.threads} after")
        return found


class Examination:
    """An agent before an attack; `passed` when it is over."""

    def __init__(self, node: Node) -> None:
        self._node, self._pid = node, node.pid
        self._said = node.log.stat().st_size
        self.before = Vitals.of(node.pid)

    def passed(self) -> Vitals:
        """The same agent serves, as it did before. It has a while for what it gives up by deadlines."""
        node = self._node
        assert node.call(api.NODE_SHOW).name == node.name
        assert node.pid == self._pid
        said = node.log.read_bytes()[self._said :].decode()
        assert "Traceback" not in said, said[-4000:]
        assert " ERROR " not in said, said[-4000:]
        assert all(char.isprintable() for char in said.replace("\n", ""))
        assert len(said) < LOG_BYTES, said[-2000:]
        until = time.monotonic() + BACK_S
        while harm := (now := Vitals.of(node.pid)).harm_since(self.before):
            assert time.monotonic() < until, "; ".join(harm)
            time.sleep(0.2)
        return now
