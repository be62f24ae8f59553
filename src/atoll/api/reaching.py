"""What both clients know about reaching a service: which address to try first, and who they are now. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from atoll.errors import Invalid

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


def parse(field: str, text: str, port: int) -> Address:
    """HOST or HOST:PORT; an IPv6 address with a port stands in brackets. `port` is for those that name none."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, digits = (rest[:1], rest[1:]) if bracket else ("", "")
        sound = bool(bracket) and (not rest or colon == ":")
    else:
        host, colon, digits = text.partition(":") if text.count(":") == 1 else (text, "", "")
        sound = True
    if not sound or not host or any(char.isspace() or char in "/@?#" for char in host):
        raise Invalid(field, text, "is not HOST or HOST:PORT", hint=f"for example 10.213.0.1:{port}")
    if colon and not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:6]) < 65536):
        raise Invalid(field, text, "has a port that is not from 1 to 65535")
    return host, int(digits) if colon else port
