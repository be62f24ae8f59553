"""One transfer of a file to a client, as a state machine (RFC 1350, 2347 to 2349, 7440).

Pure: what came and what time it is go in, what to send and when to look again come out; server.py does both.

    begin ──► OPTIONS sent ── ACK 0 ──► window sent ── ACK of its last ──► next window … ──► done
       └── no options asked ──────────►    │  ▲
                                           └──┘ nothing heard for a while, or ACK of less than all: sent again

Blocks are counted from 1 without end; on the wire the count wraps at 65536. An ACK that comes again is not
answered with data, or one delayed packet would double everything after it; only with windows, where it is how
a client says that it missed the first block, it is, once per window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, structs

from atoll.guestnet.tftp.codec import Ack, Error, Packet

BLOCK_BYTES = 512
SMALLEST_BLOCK, LARGEST_BLOCK = 8, 65464
LARGEST_WINDOW = 32
TIMEOUT_S = 1.0
LONGEST_TIMEOUT_S = 5
"""A transfer whose client is gone keeps its place until the last try: there are not many."""
TRIES = 8
_WRAP = 1 << 16


class Outcome(StrEnum):
    DONE = "done"
    ABANDONED = "nothing heard from the client"
    REFUSED = "the client gave up"


class Terms(Struct, frozen=True):
    """What client and server agreed on."""

    block_bytes: int = BLOCK_BYTES
    window: int = 1
    timeout_s: float = TIMEOUT_S
    agreed: Mapping[str, str] = {}
    """The options as they go back to the client; none: it is not told any."""


class State(Struct, frozen=True):
    """A transfer of `size` bytes, under way."""

    size: int
    terms: Terms
    wake_at: float
    greeting: bool
    """The options were sent and are not acknowledged yet."""
    acked: int = 0
    sent: int = 0
    tries: int = 1
    repeated: bool = False
    """This window was sent again because an ACK came twice."""
    outcome: Outcome | None = None

    @property
    def last(self) -> int:
        """The number of the last block, which is shorter than the others and may be empty."""
        return self.size // self.terms.block_bytes + 1

    def extent(self, block: int) -> tuple[int, int]:
        """Where a block begins in the file, and how long it is."""
        start = (block - 1) * self.terms.block_bytes
        return start, min(self.terms.block_bytes, self.size - start)


class Step(Struct, frozen=True):
    """What to send now."""

    options: bool = False
    blocks: range = range(0)


_NOTHING = Step()


def negotiate(options: Mapping[str, str], size: int | None, block_limit: int) -> Terms:
    """The terms for what a client asks for. What is out of range, or unknown, is passed over in silence.

    `size` is None where it is not known beforehand; `block_limit` is what the link carries in one piece.
    """
    agreed: dict[str, str] = {}
    block_bytes, window, timeout_s = BLOCK_BYTES, 1, TIMEOUT_S
    for name, text in options.items():
        value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if name == "blksize" and SMALLEST_BLOCK <= value <= LARGEST_BLOCK:
            block_bytes = min(value, max(block_limit, SMALLEST_BLOCK))
            agreed[name] = str(block_bytes)
        elif name == "windowsize" and 1 <= value < _WRAP:
            window = min(value, LARGEST_WINDOW)
            agreed[name] = str(window)
        elif name == "timeout" and 1 <= value <= LONGEST_TIMEOUT_S:
            timeout_s = float(value)
            agreed[name] = text
        elif name == "tsize" and value >= 0 and size is not None:
            agreed[name] = str(size)
    return Terms(block_bytes, window, timeout_s, agreed)


def begin(size: int, terms: Terms, now: float) -> tuple[State, Step]:
    state = State(size, terms, now + terms.timeout_s, greeting=bool(terms.agreed))
    return (state, Step(options=True)) if state.greeting else _send(state, now)


def heard(state: State, packet: Packet, now: float) -> tuple[State, Step]:
    """A packet came from the client."""
    if state.outcome is not None:
        return state, _NOTHING
    if isinstance(packet, Error):
        return structs.replace(state, outcome=Outcome.REFUSED), _NOTHING
    if not isinstance(packet, Ack):
        return state, _NOTHING
    if state.greeting:
        if packet.block:
            return state, _NOTHING
        return _send(structs.replace(state, greeting=False, tries=1), now)
    return _acknowledged(state, packet.block, now)


def _acknowledged(state: State, block: int, now: float) -> tuple[State, Step]:
    acked = state.acked + (block - state.acked) % _WRAP
    if acked > state.sent:
        return state, _NOTHING  # old, or of what was never sent
    if acked == state.acked:
        if state.terms.window == 1 or state.repeated:
            return state, _NOTHING
        return _send(structs.replace(state, repeated=True), now)
    state = structs.replace(state, acked=acked, tries=1, repeated=False)
    if acked == state.last:
        return structs.replace(state, outcome=Outcome.DONE), _NOTHING
    return _send(state, now)


def woke(state: State, now: float) -> tuple[State, Step]:
    """The time has come to look again."""
    if state.outcome is not None or now < state.wake_at:
        return state, _NOTHING
    if state.tries >= TRIES:
        return structs.replace(state, outcome=Outcome.ABANDONED), _NOTHING
    state = structs.replace(state, tries=state.tries + 1)
    if state.greeting:
        return structs.replace(state, wake_at=now + state.terms.timeout_s), Step(options=True)
    return _send(state, now)


def _send(state: State, now: float) -> tuple[State, Step]:
    """The window after what is acknowledged."""
    end = min(state.acked + state.terms.window, state.last)
    state = structs.replace(state, sent=end, wake_at=now + state.terms.timeout_s)
    return state, Step(blocks=range(state.acked + 1, end + 1))
