"""Calls that are open: streams, consoles, downloads and uploads, which can outlive what gave leave to them.

Whoever opened one is asked about again every second, as for a new call: a certificate that was revoked or has expired,
an operator who is none any more, a VM that was given away. What may not go on is told why, and ended.

Effects: futures of the running loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from atoll.api.route import Call, Route
from atoll.api.server import Ended
from atoll.errors import AtollError
from atoll.model.identity import Identity
from atoll.serving.user_limits import Shares, UserLimits

LOOK_EVERY_S = 1.0

Ask = Callable[[Route[Any, Any], bytes | None], object]
"""Raises when somebody with this certificate may not call this route."""


class _Open:
    def __init__(self, route: Route[Any, Any], certificate: bytes | None, call: Call[Any, Any]) -> None:
        self.route = route
        self.certificate = certificate
        self.call = call
        self.ended: Ended = asyncio.get_running_loop().create_future()


class OpenCalls:
    def __init__(
        self,
        ask: Ask,
        is_limited: Callable[[Identity], bool],
        limits: UserLimits,
        launches: Collection[str],
    ) -> None:
        """`launches` are the names of routes that count as that; any other counts as a stream."""
        self._ask = ask
        self._is_limited = is_limited
        self._limits = limits
        self._launches = frozenset(launches)
        self._open: set[_Open] = set()
        self._shares = Shares()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def open(
        self, route: Route[Any, Any], certificate: bytes | None, call: Call[Any, Any]
    ) -> Iterator[Ended]:
        """A call for as long as the block runs. TooMany when its user has too many already."""
        kind = "launches" if route.name in self._launches else "streams"
        user, most = call.identity.user, getattr(self._limits, kind)
        self._shares.enter(user, kind, most if self._is_limited(call.identity) else None)
        opened = _Open(route, certificate, call)
        self._open.add(opened)
        try:
            yield opened.ended
        finally:
            self._open.remove(opened)
            self._shares.leave(user, kind)

    async def keep(self) -> None:
        """For ever: end what may not go on."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Ask about all of them, once for each certificate and route."""
        known: dict[tuple[bytes | None, str], AtollError | None] = {}
        for opened in self._open:
            key = opened.certificate, opened.route.name
            if key not in known:
                known[key] = _refusal(partial(self._ask, opened.route, opened.certificate))
            reason = known[key] or next(filter(None, map(_refusal, opened.call.checks)), None)
            if reason is not None and not opened.ended.done():
                opened.ended.set_result(reason)


def _refusal(check: Callable[[], object]) -> AtollError | None:
    try:
        check()
    except AtollError as error:
        return error
    return None
