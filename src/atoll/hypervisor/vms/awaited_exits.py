"""Ends of machines that somebody brings about and waits for. No effects; lives in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from atoll.drivers.machine.base import Exit
from atoll.model.vm import VM


class AwaitedExits:
    """Whoever brings an end about has it, and nothing else comes of it."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Future[Exit]] = {}

    @contextlib.contextmanager
    def until_end_of(self, vm: VM) -> Iterator[asyncio.Future[Exit]]:
        """Its end, while the block runs."""
        end = self._awaited[vm.ip] = asyncio.get_running_loop().create_future()
        try:
            yield end
        finally:
            del self._awaited[vm.ip]

    def take(self, ip: str, exit_: Exit) -> bool:
        """Whether somebody waits for this end; they are told."""
        awaited = self._awaited.get(ip)
        if awaited is not None and not awaited.done():
            awaited.set_result(exit_)
        return awaited is not None
