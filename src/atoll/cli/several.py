"""Doing one thing to several VMs: a few at a time, told as each is done, summed up at the end.

Effects: a thread and a connection for each that is under way; writes to standard error.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from atoll.api.client import Client
from atoll.cli import failure
from atoll.cli.context import connect, diagnosed, find
from atoll.cli.output import notice
from atoll.cli.words import in_words_of
from atoll.errors import AtollError
from atoll.system import clock

T = TypeVar("T")

AT_ONCE = 4
IN_PART = 10
"""The exit status when some were done and some were not."""


@dataclass
class Outcome(Generic[T]):
    """What came of each, in the order in which they were named."""

    done: dict[str, T] = field(default_factory=dict)
    failed: dict[str, AtollError] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """0: all; that of the first failure: none; 10: some."""
        if not self.failed:
            return 0
        return IN_PART if self.done else next(iter(self.failed.values())).exit_status

    def ordered(self, names: Sequence[str]) -> Outcome[T]:
        return Outcome(
            {name: self.done[name] for name in names if name in self.done},
            {name: self.failed[name] for name in names if name in self.failed},
        )


def summary(outcome: Outcome[T], word: str, took_s: float) -> str:
    """2 of 3 VMs stopped in 0.41s; not b. Pure."""
    count = len(outcome.done) + len(outcome.failed)
    text = f"{len(outcome.done)} of {count} VMs {word} in {took_s:.2f}s"
    return f"{text}; not {', '.join(outcome.failed)}" if outcome.failed else text


def run(
    options: argparse.Namespace, names: Sequence[str], act: Callable[[Client, str], T], word: str
) -> Outcome[T]:
    """Act on every one, whatever becomes of the others. An interrupt goes to the caller, when all have begun to end."""
    find(options)  # where there is no cloud, that is said once
    outcome: Outcome[T] = Outcome()
    queue, lock, over = list(reversed(names)), threading.Lock(), threading.Event()
    began = clock.monotonic()

    def work() -> None:
        try:
            with connect(options) as client:
                while not over.is_set():
                    with lock:
                        if not queue:
                            return
                        name = queue.pop()
                    _one(client, name)
        finally:
            ended.release()

    def _one(client: Client, name: str) -> None:
        started = clock.monotonic()
        try:
            result = act(client, name)
        except Exception as error:
            told = in_words_of(diagnosed(failure.as_atoll_error(error), options), options.parser.flags)
            with lock:
                outcome.failed[name] = told
                if not over.is_set():
                    failure.tell(told)
        else:
            with lock:
                outcome.done[name] = result
                notice(f"{name}: {word} {clock.monotonic() - started:.2f}s", options)

    ended = threading.Semaphore(0)
    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(names)))]
    for worker in workers:
        worker.start()
    try:
        for _ in workers:
            ended.acquire()
    finally:
        over.set()
    outcome = outcome.ordered(names)
    notice(summary(outcome, word, clock.monotonic() - began), options)
    return outcome
