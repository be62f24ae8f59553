"""The ways in to a Hypervisor's API: operators have one, guests another, and neither can fill the other's.

Effects: listening sockets on the node's own addresses. Those on bridges and at the link-local address are opened by
`network/control.py`, which hands what comes there to the guests' door.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from atoll.errors import HostFailure, Unauthenticated
from atoll.serving.door.door import BACKLOG, Door, Listener, network_source
from atoll.serving.door.shares import guests_limits, operators_limits
from atoll.serving.tls import Tls
from atoll.system import clock, listening


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

    async def open(
        self, served: web.Application, addresses: Sequence[str], port: int, stack: contextlib.AsyncExitStack
    ) -> None:
        """Let callers in to `served`, and listen for operators at `addresses`, until the stack ends."""
        runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        for door in (self.operators, self.guests):
            door.begin(runner.server)
            stack.push_async_callback(door.close)
        for address in addresses:
            try:
                opened = listening.at(address, port, BACKLOG)
            except OSError as error:
                raise HostFailure(
                    f"listening on {address}:{port}: {error.strerror or error}",
                    hint="another agent may serve there; `listen` and `port` in the configuration say where to",
                ) from error
            stack.callback(Listener(opened, self._take).close)

    def _take(self, accepted: socket.socket, ip: str) -> None:
        """Who comes to the node's own addresses. A guest stays one, whichever way it takes."""
        if self._is_guest(ip):
            self.guests.take(accepted, ip)
        else:
            self.operators.take(accepted, network_source(ip))
