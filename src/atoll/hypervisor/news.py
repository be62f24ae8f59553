"""News of the node itself: told when it is another one than was told last, and at most ten times a second. No effects.

What a node has free, in capacity and in addresses, changes with every VM that comes, goes or is changed, and several
times in the course of each: what counts is what is left when it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from atoll.model.node import Node
from atoll.system import clock

SETTLE_S = 0.02
EVERY_S = 0.1


class NodeNews:
    """`node` is the node as it is now; `tell` is called with it."""

    def __init__(self, node: Callable[[], Node], tell: Callable[[Node], None]) -> None:
        self._node = node
        self._tell = tell
        self._told: Node | None = None
        self._told_at = -EVERY_S
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """It may have changed."""
        if self._timer is None:
            delay_s = max(SETTLE_S, self._told_at + EVERY_S - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def close(self) -> None:
        """Tell no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        node = self._node()
        if node != self._told:
            self._told, self._told_at = node, clock.monotonic()
            self._tell(node)
