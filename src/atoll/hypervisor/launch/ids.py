"""The users and groups of this node's machines: each holder has its own, from the blocks that this agent claimed.

A holder is a VM or a member of the hot pool, by its instance id, or the template that is being made. What a VM has
is in its record, and stays the same for as long as there is anything of it. Blocks are claimed ahead of need and in
threads: nobody who creates a VM waits for the register, unless many come at once.

Effects: the register, through atoll.system.ids. The decisions are in atoll.plan.ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from atoll.errors import AtollError
from atoll.plan.ids import LOW, Block, Ids, Space, block_at, block_of, free_slots, slots, to_give_back
from atoll.system.ids import Register, running_ids

log = logging.getLogger(__name__)

CHECK_EVERY_S = 60.0


class Wish(Struct, frozen=True):
    """What a holder needs: a slot of this space, and if it can be these ids."""

    space: Space
    ids: Ids | None = None


class NodeIds:
    """Who has which ids here."""

    def __init__(self, register: Register, spaces: Collection[Space]) -> None:
        self._register = register
        self._spaces = frozenset(spaces)
        self._blocks: frozenset[Block] = frozenset()
        self._held: dict[str, Ids] = {}
        self._barred: frozenset[Ids] = frozenset()
        """Slots of ours that something may use of which nobody knows whose it is."""
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()

    # --- at start-up; waits for the register, so call it in a thread

    def prepare(self, holders: Mapping[str, Wish], unknown: Iterable[Ids]) -> None:
        """Each of these holders has ids from here on: those that an earlier agent gave it, or new ones.

        `unknown`: what is in use by somebody who cannot be told any more.
        """
        self._blocks = self._register.blocks()
        for holder, wish in holders.items():
            if wish.ids is not None and wish.ids not in self._held.values() and self._is_ours(wish.ids):
                self._held[holder] = wish.ids
            elif wish.ids is not None:
                log.error("user ids from %d on are another's: %s gets new ones", wish.ids.first, holder)
        # What an earlier agent left running has ids of our blocks, and may have no record.
        running = {slot for uid in running_ids() for slot in self._slots_at(uid)}
        self._barred = frozenset(running | set(unknown)) - frozenset(self._held.values())
        for holder, wish in holders.items():
            self._fill(wish.space)
            self.take(holder, wish.space)
        for space in self._spaces:
            self._fill(space)
        if spare := self._set_spare_aside():
            self._register.give_back(*spare)

    def _fill(self, space: Space) -> None:
        while self._is_short(space):
            self._blocks |= {self._register.claim(space)}

    def _is_ours(self, ids: Ids) -> bool:
        block = block_of(ids)
        if block is None:
            return False
        if block not in self._blocks and self._register.claim_these(block):
            self._blocks |= {block}
        return block in self._blocks

    def _slots_at(self, uid: int) -> list[Ids]:
        block = block_at(uid)
        found = () if block is None or block not in self._blocks else slots(block)
        return [slot for slot in found if slot.first <= uid < slot.first + slot.count]

    # --- nothing here waits

    def find(self, holder: str) -> Ids | None:
        return self._held.get(holder)

    def has_free(self, space: Space) -> bool:
        return bool(self._free(space))

    def take(self, holder: str, space: Space) -> Ids:
        """The holder's own: those that it has, or the lowest that are free, of which there are some."""
        if holder not in self._held:
            free = self._free(space)
            self._held[holder] = free[0]
            if self._is_short(space):
                self._wake.set()
        return self._held[holder]

    def release(self, holder: str) -> None:
        """Nothing of the holder is left. Has none is fine."""
        self._held.pop(holder, None)

    # --- the rest does

    async def until_free(self, space: Space) -> None:
        """Returns when there are free ids, and without a pause if there are: take them before the next one."""
        while not self._free(space):
            async with self._changing:
                if not self._free(space):
                    await self._claim(space)

    async def tend(self) -> None:
        """For ever: claim blocks before they are needed, give back those that nobody uses."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                async with self._changing:
                    await self._adjust()
            except (AtollError, OSError) as error:
                log.error("claiming user ids: %s", error)

    async def _adjust(self) -> None:
        for space in self._spaces:
            while self._is_short(space):
                await self._claim(space)
        if spare := self._set_spare_aside():
            await asyncio.to_thread(self._register.give_back, *spare)

    def _set_spare_aside(self) -> tuple[Block, ...]:
        """Blocks that are not ours any more, from before they can be anybody else's."""
        spare = to_give_back(self._blocks, self._used())
        self._blocks -= frozenset(spare)
        return spare

    async def _claim(self, space: Space) -> None:
        block = await asyncio.to_thread(self._register.claim, space)
        self._blocks |= {block}

    def _is_short(self, space: Space) -> bool:
        return len(self._free(space)) < LOW

    def _free(self, space: Space) -> list[Ids]:
        return free_slots(space, self._blocks, self._used())

    def _used(self) -> frozenset[Ids]:
        return self._barred.union(self._held.values())
