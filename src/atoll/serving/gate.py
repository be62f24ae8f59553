"""The gate of a service: who is calling, and which routes their certificate opens. Pure but for the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from atoll.api.access import Access
from atoll.api.route import Call, Route
from atoll.api.server import Ended
from atoll.errors import AtollError
from atoll.identity.access import Operators, check_route
from atoll.identity.peer import PeerReader
from atoll.model.identity import Identity
from atoll.serving.open_calls import OpenCalls
from atoll.serving.user_limits import Pace, UserLimits, too_fast
from atoll.system import clock

_NOBODY = Identity(user="anonymous")
_LIMITS = UserLimits()

Denied = Callable[[Route[Any, Any], Identity, AtollError], Awaitable[None]]


class CertificateGate:
    """Admits callers by their certificate, and to the routes that it opens."""

    def __init__(
        self,
        peers: PeerReader,
        operators: Callable[[], Operators],
        denied: Denied | None = None,
        now: Callable[[], datetime] = clock.now,
        limits: UserLimits = _LIMITS,
        launches: Collection[str] = (),
    ) -> None:
        """`operators` are those of this moment; `denied` is told of callers that are known and turned away.

        `launches` are the names of routes of which each user may have fewer open than of others.
        """
        self._now = now
        self._peers = peers
        self._operators = operators
        self._denied = denied
        self._limits = limits
        self._pace = Pace(limits.calls_per_s, 2 * limits.calls_per_s)
        self.calls = OpenCalls(self._ask_again, self._is_limited, limits, launches)

    async def admit(self, route: Route[Any, Any], certificate: bytes | None) -> Identity:
        if route.access is Access.PUBLIC:
            return _NOBODY
        identity, operators = self._peers.identity(certificate, self._now()), self._operators()
        try:
            check_route(route.access, route.name, identity, operators)
        except AtollError as error:
            if self._denied is not None:
                await self._denied(route, identity, error)
            raise
        wait_s = self._pace.wait_s(identity.user, clock.monotonic())
        if wait_s and not operators.include(identity):
            raise too_fast(identity.user, self._limits.calls_per_s, wait_s)
        return identity

    def open(
        self, route: Route[Any, Any], certificate: bytes | None, call: Call[Any, Any]
    ) -> AbstractContextManager[Ended]:
        return self.calls.open(route, certificate, call)

    def _is_limited(self, identity: Identity) -> bool:
        return not self._operators().include(identity)

    def _ask_again(self, route: Route[Any, Any], certificate: bytes | None) -> None:
        if route.access is not Access.PUBLIC:
            identity = self._peers.identity(certificate, self._now())
            check_route(route.access, route.name, identity, self._operators())
