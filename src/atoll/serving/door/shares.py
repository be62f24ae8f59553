"""How much of a service's door each source may use. Pure: counts, and knows no clock and no socket.

A caller is a stranger until its certificate has made it known. Both are counted apart, so that no number of strangers
takes the place of a caller that is known.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Limits(Struct, frozen=True):
    """What callers of one door may use."""

    strangers: int
    """Connections in all of callers that are not known: the oldest makes room for a new one."""
    strangers_per_source: int
    known: int
    known_per_source: int
    new_per_source_per_s: int
    new_per_s: int
    handshake_s: float = 5
    """From the connection to the end of the TLS handshake."""
    request_s: float = 10
    """From the handshake, or from the answer before, to the end of a stranger's headers."""
    stranger_s: float = 30
    """The whole life of a stranger's connection."""
    idle_s: float = 75
    """From the handshake, or from the answer before, to the end of the headers of a caller that is known."""
    stalled_s: float = 60
    """As long as a caller may leave unread what it asked for."""


def operators_limits(descriptors: int) -> Limits:
    """For a process that may have so many descriptors."""
    strangers, known = min(2048, descriptors // 16), min(4096, descriptors // 8)
    return Limits(strangers, max(1, strangers // 4), known, max(1, known // 4), 500, 1000)


def guests_limits(descriptors: int) -> Limits:
    """A guest has one of them: what it takes of all is little."""
    share = min(1024, descriptors // 16)
    return Limits(
        share, min(32, max(1, share // 4)), share, min(64, max(1, share // 4)), 50, 200, stranger_s=15
    )


class Entry(Enum):
    """Whether a new connection may come in."""

    ADMITTED = "admitted"
    TOO_MANY = "too many connections"
    TOO_FAST = "too many new connections a second"


class Shares:
    """Counts what each source uses."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self.strangers = 0
        self.known = 0
        self._new: dict[str, int] = {}
        self._new_in_all = 0
        self._second = 0

    @property
    def full_of_strangers(self) -> bool:
        return self.strangers > self._limits.strangers

    def enter(self, source: str, second: int) -> Entry:
        """One more connection, of a stranger so far. If it is admitted, it has to `leave`."""
        if second != self._second:
            self._second, self._new_in_all = second, 0
            self._new.clear()
        new = self._new.get(source, 0)
        if new >= self._limits.new_per_source_per_s or self._new_in_all >= self._limits.new_per_s:
            return Entry.TOO_FAST
        # What is refused below is not counted as new: it costs next to nothing.
        mine = self._strangers.get(source, 0)
        if mine >= self._limits.strangers_per_source:
            return Entry.TOO_MANY
        self._new[source] = new + 1
        self._new_in_all += 1
        self._strangers[source] = mine + 1
        self.strangers += 1
        return Entry.ADMITTED

    def know(self, source: str) -> bool:
        """A stranger is known now. Where there is no place for it among those, it stays one."""
        mine = self._known.get(source, 0)
        if mine >= self._limits.known_per_source or self.known >= self._limits.known:
            return False
        self.leave(source, known=False)
        self._known[source] = mine + 1
        self.known += 1
        return True

    def leave(self, source: str, *, known: bool) -> None:
        counts = self._known if known else self._strangers
        counts[source] -= 1
        if not counts[source]:
            del counts[source]
        if known:
            self.known -= 1
        else:
            self.strangers -= 1
