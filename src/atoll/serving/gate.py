"""The gate of a service: who is calling, and which routes their certificate opens. Pure but for the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from atoll.api.access import Access
from atoll.api.route import Route
from atoll.errors import AtollError
from atoll.identity.access import Operators, check_route
from atoll.identity.peer import PeerReader
from atoll.model.identity import Identity
from atoll.system import clock

_NOBODY = Identity(user="anonymous")

Denied = Callable[[Route[Any, Any], Identity, AtollError], Awaitable[None]]


class CertificateGate:
    """Admits callers by their certificate, and to the routes that it opens."""

    def __init__(
        self,
        peers: PeerReader,
        operators: Callable[[], Operators],
        denied: Denied | None = None,
        now: Callable[[], datetime] = clock.now,
    ) -> None:
        """`operators` are those of this moment; `denied` is told of callers that are known and turned away."""
        self._now = now
        self._peers = peers
        self._operators = operators
        self._denied = denied

    async def admit(self, route: Route[Any, Any], certificate: bytes | None) -> Identity:
        if route.access is Access.PUBLIC:
            return _NOBODY
        identity = self._peers.identity(certificate, self._now())
        try:
            check_route(route.access, route.name, identity, self._operators())
        except AtollError as error:
            if self._denied is not None:
                await self._denied(route, identity, error)
            raise
        return identity
