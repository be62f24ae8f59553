"""What both clients know about reaching a service: which address to try first, and who they are now. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

Address = tuple[str, int]

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""What connections are made with. A callable gives another context when the certificate has been renewed."""


class Addresses:
    """Those of one service. The one that answered last is tried first, so that a dead one costs its time once."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    def in_order(self) -> tuple[Address, ...]:
        return self._addresses

    @property
    def first(self) -> Address:
        return self._addresses[0]

    def answered(self, address: Address) -> None:
        if address != self._addresses[0]:
            self._addresses = (address, *(other for other in self._addresses if other != address))


def current(tls: Tls) -> ssl.SSLContext:
    return tls if isinstance(tls, ssl.SSLContext) else tls()


def show(address: Address) -> str:
    """HOST:PORT as a URL has it: an IPv6 address stands in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
