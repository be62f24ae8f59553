from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.images.cutting import cut
from atoll.images.objects import hashed
from atoll.model.tree import GRAIN_BYTES, PIECE_BYTES, Content, Hole, Piece

RUNS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([1, 100, GRAIN_BYTES, GRAIN_BYTES * 3 + 7, PIECE_BYTES])),
    max_size=5,
)


def windows_of(data: bytes) -> list[bytes | int]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def cut_whole(data: bytes) -> tuple[Content, dict[str, bytes]]:
    kept: dict[str, bytes] = {}

    def take(part: bytes) -> Piece:
        piece = hashed(part)
        kept[piece.id] = part
        return piece

    return cut(len(data), windows_of(data), take), kept


def joined(content: Content, kept: dict[str, bytes]) -> bytes:
    return b"".join(kept[part.id] if isinstance(part, Piece) else bytes(part.size) for part in content.parts)


@settings(max_examples=60)
@given(RUNS, st.integers(0, 9))
def test_what_was_cut_is_the_same_when_joined(runs: list[tuple[bool, int]], seed: int):
    dice = random.Random(seed)
    data = b"".join(dice.randbytes(size) if filled else bytes(size) for filled, size in runs)
    content, kept = cut_whole(data)
    assert joined(content, kept) == data
    assert all(part.size <= PIECE_BYTES for part in content.parts if isinstance(part, Piece))


def test_a_file_of_up_to_a_piece_is_one_object_or_a_hole():
    for size in (1, GRAIN_BYTES * 2, PIECE_BYTES):
        content, _ = cut_whole(bytes(size - 1) + b"x")
        assert content.parts == (hashed(bytes(size - 1) + b"x"),)
        assert cut_whole(bytes(size))[0].parts == (Hole(size),)
    assert cut_whole(b"")[0] == Content()


def test_a_larger_one_is_cut_at_multiples_so_that_a_change_moves_one_piece():
    data = os.urandom(3 * PIECE_BYTES + 5)
    before = cut_whole(data)[0].parts
    changed = bytearray(data)
    changed[PIECE_BYTES + 3] ^= 1
    after = cut_whole(bytes(changed))[0].parts
    assert [part.size for part in before] == [PIECE_BYTES] * 3 + [5]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]


def test_zeros_in_a_large_one_cost_nothing():
    data = b"x" * GRAIN_BYTES + bytes(5 * PIECE_BYTES) + b"y" * 10
    content, kept = cut_whole(data)
    assert [type(part) for part in content.parts] == [Piece, Hole, Piece]
    assert sum(map(len, kept.values())) < 2 * GRAIN_BYTES


@pytest.mark.parametrize("holes", [1, 3])
def test_zeros_that_nobody_read_are_as_those_that_were_read(holes: int):
    end = b"x" * 100
    read = cut_whole(bytes(holes * PIECE_BYTES) + end)[0]
    told = cut(holes * PIECE_BYTES + 100, [holes * PIECE_BYTES, end], hashed)
    assert told == read
