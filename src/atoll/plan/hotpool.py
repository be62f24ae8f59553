"""How many clones a node keeps ready, of which templates. Pure.

The pool follows demand: as many of a kind as were created within a minute, at least one while its kind is in
use at all, and none when nobody has asked for a while. VMs come first: the pool only takes what they leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from atoll.model.node import Capacity

WINDOW_S = 60.0
IDLE_S = 900.0
SPARE_ADDRESSES = 4
"""Free addresses of a subnet that the pool leaves alone."""


class PoolLine(Struct, frozen=True):
    """Members of one kind: copies of one template in one subnet."""

    key: str
    subnet: str
    memory_mib: int
    have: int
    want: int


class Left(Struct, frozen=True):
    """What VMs and the members that there are leave of the node."""

    capacity: Capacity
    available_mib: int
    """Memory of the host that nobody uses."""
    reserve_mib: int
    addresses: dict[str, int]
    """Free ones by subnet."""


class PoolStep(Struct, frozen=True):
    """One change of the pool."""

    key: str
    subnet: str
    add: bool


def target(created: Sequence[float], now: float, most: int) -> int:
    """How many to have of a kind that was created at these times."""
    if not created or now - max(created) > IDLE_S:
        return 0
    burst = sum(1 for at in created if now - at <= WINDOW_S)
    return min(most, max(1, burst))


def next_step(lines: Sequence[PoolLine], left: Left) -> PoolStep | None:
    """What to do next; None when the pool is as it should be."""
    tight = left.available_mib < left.reserve_mib or left.capacity.memory_mib < 0
    for line in sorted(lines, key=lambda line: line.want - line.have):
        if line.have > line.want or (tight and line.have):
            return PoolStep(line.key, line.subnet, add=False)
    for line in sorted(lines, key=lambda line: line.have):
        if line.have < line.want and _fits(line, left):
            return PoolStep(line.key, line.subnet, add=True)
    return None


def _fits(line: PoolLine, left: Left) -> bool:
    return (
        left.capacity.memory_mib >= line.memory_mib
        and left.available_mib - line.memory_mib >= 2 * left.reserve_mib
        and left.addresses.get(line.subnet, 0) > SPARE_ADDRESSES
    )
