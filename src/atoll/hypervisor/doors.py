"""The ways in to a Hypervisor's API: operators have one, guests another, and neither can fill the other's.

Effects: listening sockets on the node's own addresses, and on those of the host around it. Those on bridges and at the
link-local address are opened by `network/control.py`, which hands what comes there to the guests' door.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from atoll.api.reaching import Address, show
from atoll.errors import HostFailure, Unauthenticated
from atoll.serving.door.door import BACKLOG, Door, Listener, network_source
from atoll.serving.door.shares import guests_limits, operators_limits
from atoll.serving.tls import Tls
from atoll.system import clock, listening

log = logging.getLogger(__name__)

TRY_AGAIN_S = 2.0


class Doors:
    """The operators' door and the guests'."""

    def __init__(self, tls: Tls, descriptors: int, is_guest: Callable[[str], bool]) -> None:
        """`is_guest` tells whether an address is that of a VM."""

        def is_known(certificate: bytes) -> bool:
            try:
                tls.peers.identity(certificate, clock.now())
            except Unauthenticated:
                return False
            return True

        self.operators = Door("operators", tls.context, operators_limits(descriptors), is_known)
        self.guests = Door("guests", tls.context, guests_limits(descriptors), is_known)
        self._is_guest = is_guest

    async def open(self, served: web.Application, stack: contextlib.AsyncExitStack) -> None:
        """Let callers in to `served`, until the stack ends."""
        runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        for door in (self.operators, self.guests):
            door.begin(runner.server)
            stack.push_async_callback(door.close)

    def listen(self, address: Address, namespace: str | None = None) -> Listener:
        """Take whoever comes to this address, once the doors are open; HostFailure where it cannot be had."""
        try:
            opened = listening.at(*address, BACKLOG, namespace)
        except OSError as error:
            raise HostFailure(
                f"listening on {show(address)}: {error.strerror or error}",
                hint="another agent may serve there; `listen` and `port` in the configuration say where to",
            ) from error
        return Listener(opened, self._take)

    def _take(self, accepted: socket.socket, ip: str) -> None:
        """Who comes to the node's own addresses. A guest stays one, whichever way it takes."""
        if self._is_guest(ip):
            self.guests.take(accepted, ip)
        else:
            self.operators.take(accepted, network_source(ip))


class OutsideDoors:
    """The operators' door at addresses of the host around the node's namespace.

    The node serves without them: an address that is not there yet, or that somebody else has, is tried again.
    """

    def __init__(self, doors: Doors, addresses: Sequence[Address], outside: str) -> None:
        self._doors = doors
        self._outside = outside
        self._missing = dict.fromkeys(addresses, "")
        """Each with why it could not be had, as it was last logged."""
        self._listeners: list[Listener] = []

    def open(self) -> None:
        """Listen where nobody of ours does yet."""
        for address, said in list(self._missing.items()):
            try:
                self._listeners.append(self._doors.listen(address, self._outside))
            except HostFailure as failure:
                if failure.brief != said:
                    log.error("%s; trying again", failure.brief)
                self._missing[address] = failure.brief
            else:
                del self._missing[address]
                log.info("serving on %s of the host", show(address))

    async def keep(self) -> None:
        """For ever."""
        while True:
            self.open()
            await asyncio.sleep(TRY_AGAIN_S)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
