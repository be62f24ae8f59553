"""What a measurement is: series of samples, a figure of ours beside its limit, the facts of the machine.

Effects: `facts` reads /proc and asks QEMU for its version, `alternate` runs what it is given.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct


class Series(Struct, frozen=True):
    """Samples of one thing, in the order in which they were taken."""

    name: str
    samples: tuple[float, ...]
    median: float
    lowest: float
    highest: float


def series(name: str, samples: list[float]) -> Series:
    rounded = tuple(round(sample, 6) for sample in samples)
    return Series(name, rounded, statistics.median(rounded), min(rounded), max(rounded))


class Target(Struct, frozen=True):
    """What a figure shall be, what it was, and whether that is good enough."""

    text: str
    value: float
    met: bool


class Figure(Struct, frozen=True):
    """Something of ours beside its limit, measured in the same run, in turn."""

    name: str
    unit: Literal["s", "ms", "requests/s"]
    ours: Series
    limit: Series
    target: Target | None = None

    @property
    def beyond(self) -> float:
        """What our median adds to the limit's."""
        return self.ours.median - self.limit.median

    @property
    def beyond_at_best(self) -> float:
        """The same of the best samples, which other work on the machine disturbed least."""
        best = max if self.unit == "requests/s" else min
        return best(self.ours.samples) - best(self.limit.samples)

    @property
    def ratio(self) -> float:
        return self.ours.median / self.limit.median


class Table(Struct, frozen=True):
    """Anything else that a case found out."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Findings(Struct, frozen=True):
    """What a case gives back."""

    figures: tuple[Figure, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


class Facts(Struct, frozen=True):
    """The machine that was measured, and how busy it was before."""

    cores: int
    cpu: str
    memory_mib: int
    kernel: str
    qemu: str
    python: str
    load_before: tuple[float, float, float]


class Result(Struct, frozen=True):
    """A case that was run: the content of results/<case>.json."""

    case: str
    title: str
    ran_at: datetime
    took_s: float
    machine: Facts
    findings: Findings


def at_most(text: str, value: float, bound: float) -> Target:
    return Target(text, round(value, 6), value <= bound)


def at_least(text: str, value: float, bound: float) -> Target:
    return Target(text, round(value, 6), value >= bound)


def alternate(
    rounds: int, contestants: Mapping[str, Callable[[], float]], say: Callable[[str], None]
) -> dict[str, Series]:
    """Samples of each, taken in turn (ABAB…), so that whatever disturbs the machine disturbs all of them."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, measure in contestants.items():
            samples[name].append(measure())
        latest = ", ".join(f"{name} {taken[-1]:.4g}" for name, taken in samples.items())
        say(f"round {number + 1} of {rounds}: {latest}")
    return {name: series(name, taken) for name, taken in samples.items()}


def facts() -> Facts:
    """This machine, now."""
    cpuinfo = _fields(Path("/proc/cpuinfo").read_text())
    memory_kib = int(_fields(Path("/proc/meminfo").read_text())["MemTotal"].split()[0])
    return Facts(
        cores=len(os.sched_getaffinity(0)),
        cpu=cpuinfo.get("model name", platform.machine()),
        memory_mib=memory_kib // 1024,
        kernel=platform.release(),
        qemu=_qemu_version(),
        python=platform.python_version(),
        load_before=os.getloadavg(),
    )


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(f"  {text}", file=sys.stderr, flush=True)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _qemu_version() -> str:
    try:
        asked = subprocess.run(
            ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return asked.splitlines()[0].removeprefix("QEMU emulator version ")
