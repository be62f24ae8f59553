"""How much of the metadata server each caller may use. Pure: counts, and knows no clock and no socket."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """What callers may use."""

    connections_per_guest: int = 16
    connections: int = 512
    per_guest_per_s: int = 200
    """New connections and requests together. Above it, connections are refused and requests wait."""
    headers_s: float = 5
    """From the connection, or from the answer before, to the end of a request's headers."""
    last_request_s: float = 20
    """An answer given after this long is the last of its connection."""
    connection_s: float = 30


class Shares:
    """Counts what each caller uses."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[str, int] = {}
        self._total = 0
        self._spent: dict[str, int] = {}
        self._second = 0

    def enter(self, ip: str, second: int) -> bool:
        """Whether one more connection may open. If so, it has to `leave`."""
        mine = self._open.get(ip, 0)
        limits = self._limits
        within_pace = self.spend(ip, second)
        if not within_pace or mine >= limits.connections_per_guest or self._total >= limits.connections:
            return False
        self._open[ip] = mine + 1
        self._total += 1
        return True

    def leave(self, ip: str) -> None:
        self._total -= 1
        self._open[ip] -= 1
        if not self._open[ip]:
            del self._open[ip]

    def spend(self, ip: str, second: int) -> bool:
        """Whether the caller is still within its pace with one thing more in this second."""
        if second != self._second:
            self._second = second
            self._spent.clear()
        spent = self._spent[ip] = self._spent.get(ip, 0) + 1
        return spent <= self._limits.per_guest_per_s
