"""The node's events: numbered, kept for a while, followed by any number of readers. No effects."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from datetime import datetime

import msgspec

from atoll.model.event import Event, EventKind
from atoll.model.node import Node
from atoll.model.vm import VM

KEPT = 10_000
KEPT_BYTES = 8 << 20
"""What is kept takes no more than about so much memory: users say how large a VM is, and how often it changes."""
_ADDRESS_BYTES = 8
"""A free address of a node, which is shared by all events that name it."""


class Events:
    """An epoch begins with the agent. A reader that resumes within what is kept misses nothing; any other
    one is given the full state first."""

    def __init__(
        self, clock: Callable[[], datetime], state: Callable[[], tuple[Node, tuple[VM, ...]]]
    ) -> None:
        self.epoch = uuid.uuid4().hex
        self._clock = clock
        self._state = state
        self._sequence = 0
        self._kept: deque[Event] = deque()
        self._bytes: deque[int] = deque()
        """Of each that is kept."""
        self._bytes_in_all = 0
        self._news = asyncio.Event()

    def emit(self, kind: EventKind, vm: VM | None = None, node: Node | None = None) -> None:
        self._sequence += 1
        event = Event(kind, self.epoch, self._sequence, self._clock(), vm=vm, node=node)
        self._kept.append(event)
        self._bytes.append(_bytes_of(event))
        self._bytes_in_all += self._bytes[-1]
        while len(self._kept) > KEPT or self._bytes_in_all > KEPT_BYTES:
            self._kept.popleft()
            self._bytes_in_all -= self._bytes.popleft()
        self._news.set()
        self._news = asyncio.Event()

    async def read(self, epoch: str, sequence: int, follow: bool) -> AsyncGenerator[Event, None]:
        """Everything after (epoch, sequence), as it happens if asked to follow."""
        while True:
            news = self._news
            # Also a reader that is too slow for what is kept: it never misses a change without being told.
            if epoch != self.epoch or not self._covers(sequence):
                node, vms = self._state()
                epoch, sequence = self.epoch, self._sequence
                yield Event(EventKind.STATE, epoch, sequence, self._clock(), node=node, vms=vms)
                continue
            for event in [event for event in self._kept if event.sequence > sequence]:
                sequence = event.sequence
                yield event
            if not follow:
                return
            if sequence == self._sequence:
                await news.wait()

    def _covers(self, sequence: int) -> bool:
        """Everything after this number is still kept."""
        return self._sequence - len(self._kept) <= sequence <= self._sequence


def _bytes_of(event: Event) -> int:
    """About what it takes to keep it."""
    of_vm = len(msgspec.json.encode(event.vm)) if event.vm is not None else 0
    addresses = sum(len(pool.free) for pool in event.node.pools) if event.node is not None else 0
    return 1024 + of_vm + _ADDRESS_BYTES * addresses
