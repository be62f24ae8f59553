"""Which users and groups of the host a machine runs as. Pure.

    0x60000000 to 0x60ffffff    single ids, one for each machine that is one process of the host
    0x61000000 to 0x7fffffff    ranges of 65,536 ids, one for each container: its users are users of the host

Distributions and systemd hand out none of these. A slot is a single id or a range; 64 slots that follow each other
are a block. Agents of one host share the ids block by block (system/ids.py has the register of them); inside its
own blocks an agent gives each machine the lowest slot that nobody has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from msgspec import Struct

SLOTS = 64
"""In a block."""
LOW = 32
"""Another block is claimed when fewer slots than this are free: ahead of need."""
SPARE = 64
"""So many slots stay free when empty blocks are given back."""


class Space(StrEnum):
    """What a slot is."""

    USERS = "users"
    """A single id."""
    RANGES = "ranges"
    """A range of them."""


class _Layout(Struct, frozen=True):
    first: int
    end: int
    width: int

    @property
    def blocks(self) -> int:
        return (self.end - self.first) // (self.width * SLOTS)


LAYOUT = {
    Space.USERS: _Layout(0x6000_0000, 0x6100_0000, 1),
    Space.RANGES: _Layout(0x6100_0000, 0x8000_0000, 65_536),
}


class Ids(Struct, frozen=True):
    """The users and groups that are one machine's own: `first`, and those that follow it."""

    first: int
    count: int = 1


class Block(Struct, frozen=True, order=True):
    """Slots that one agent has for itself."""

    space: Space
    number: int

    @property
    def name(self) -> str:
        return f"{self.space}-{self.number}"


def slots(block: Block) -> tuple[Ids, ...]:
    """All of a block, the lowest first."""
    layout = LAYOUT[block.space]
    first = layout.first + block.number * SLOTS * layout.width
    return tuple(Ids(first + slot * layout.width, layout.width) for slot in range(SLOTS))


def block_at(uid: int) -> Block | None:
    """The block that an id of the host is in; None when it is no id of ours."""
    for space, layout in LAYOUT.items():
        if layout.first <= uid < layout.end:
            return Block(space, (uid - layout.first) // (layout.width * SLOTS))
    return None


def block_of(ids: Ids) -> Block | None:
    """The block that this slot is in; None when it is no slot."""
    block = block_at(ids.first)
    return block if block is not None and ids in slots(block) else None


def block_named(name: str) -> Block | None:
    """The block of this name; None when that is the name of none."""
    space, _, digits = name.partition("-")
    if space not in LAYOUT or not (digits.isascii() and digits.isdigit()):
        return None
    block = Block(Space(space), int(digits))
    return block if block.number < LAYOUT[block.space].blocks and block.name == name else None


def free_slots(space: Space, blocks: Iterable[Block], used: Collection[Ids]) -> list[Ids]:
    """The slots of these blocks that nobody has, the lowest first."""
    ours = sorted(block for block in blocks if block.space is space)
    return [slot for block in ours for slot in slots(block) if slot not in used]


def to_give_back(blocks: Collection[Block], used: Collection[Ids]) -> tuple[Block, ...]:
    """Blocks that nothing uses and nobody misses, the highest first."""
    given: list[Block] = []
    for space in Space:
        free = len(free_slots(space, blocks, used))
        for block in sorted((one for one in blocks if one.space is space), reverse=True):
            if free - SLOTS >= SPARE and not any(slot in used for slot in slots(block)):
                given.append(block)
                free -= SLOTS
    return tuple(given)
