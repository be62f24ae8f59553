from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.ids import (
    LAYOUT,
    LOW,
    SLOTS,
    SPARE,
    Block,
    Ids,
    Space,
    block_at,
    block_named,
    block_of,
    free_slots,
    slots,
    to_give_back,
)

blocks = st.builds(
    lambda space, number: Block(space, number % LAYOUT[space].blocks),
    st.sampled_from(Space),
    st.integers(0, 1 << 20),
)


def ids_of(slot: Ids) -> range:
    return range(slot.first, slot.first + slot.count)


def test_there_are_sixteen_million_users_and_7936_ranges() -> None:
    assert LAYOUT[Space.USERS].blocks * SLOTS == 1 << 24
    assert LAYOUT[Space.RANGES].blocks * SLOTS == 7_936


@given(blocks)
def test_every_id_of_a_block_is_ours_and_in_no_other(block: Block) -> None:
    inside = slots(block)
    assert len(set(inside)) == SLOTS
    for slot in inside:
        assert block_of(slot) == block
        for uid in (ids_of(slot)[0], ids_of(slot)[-1]):
            assert 0x6000_0000 <= uid < 0x8000_0000
            assert block_at(uid) == block


@given(blocks, blocks)
def test_two_blocks_share_no_id(one: Block, other: Block) -> None:
    first, second = ((slots(block)[0].first, ids_of(slots(block)[-1])[-1]) for block in (one, other))
    assert one == other or first[1] < second[0] or second[1] < first[0]


@given(blocks)
def test_a_block_is_found_by_its_name(block: Block) -> None:
    assert block_named(block.name) == block


@pytest.mark.parametrize(
    "name", ["", "users", "users-", "users-x", "users-01", "groups-1", "ranges-124", "users--1"]
)
def test_what_is_no_name_of_a_block_is_none(name: str) -> None:
    assert block_named(name) is None


@pytest.mark.parametrize(
    "ids", [Ids(0), Ids(1000), Ids(0x8000_0000), Ids(0x6000_0000, 2), Ids(0x6100_0001, 65_536)]
)
def test_what_is_no_slot_is_in_no_block(ids: Ids) -> None:
    assert block_of(ids) is None


@given(st.sets(blocks, max_size=4), st.data())
def test_the_free_slots_are_those_that_nobody_has_the_lowest_first(
    ours: set[Block], data: st.DataObject
) -> None:
    every = [slot for block in ours for slot in slots(block)]
    used = set(data.draw(st.lists(st.sampled_from(every), max_size=40))) if every else set()
    free = [slot for space in Space for slot in free_slots(space, ours, used)]
    assert set(free) == set(every) - used
    assert free == sorted(free, key=lambda slot: slot.first)


@given(st.sets(blocks, max_size=6), st.data())
def test_only_empty_blocks_are_given_back_and_enough_stays_free(
    ours: set[Block], data: st.DataObject
) -> None:
    every = [slot for block in ours for slot in slots(block)]
    used = set(data.draw(st.lists(st.sampled_from(every), max_size=80))) if every else set()
    given_back = to_give_back(ours, used)
    for block in given_back:
        assert not used & set(slots(block))
    left = ours - set(given_back)
    for space in Space:
        before, after = (len(free_slots(space, some, used)) for some in (ours, left))
        # No block is claimed anew for what was given back.
        assert after == before or after >= SPARE > LOW
        # And none that could go stays.
        empty = [block for block in left if block.space is space and not used & set(slots(block))]
        assert not empty or after - SLOTS < SPARE
