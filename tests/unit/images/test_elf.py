from __future__ import annotations

import struct

import pytest

from atoll.images import elf


def program(*kinds: int) -> bytes:
    """An ELF program with one program header of each kind."""
    head = struct.pack("<5s27xQ14xHH", b"\x7fELF\x02", 64, 56, len(kinds)).ljust(64, b"\0")
    return head + b"".join(struct.pack("<I52x", kind) for kind in kinds)


def test_a_program_with_an_interpreter_is_not_static() -> None:
    assert elf.is_static(program(1, 1))
    assert not elf.is_static(program(1, 3, 1))


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01" + bytes(60), program(1)[:70]])
def test_what_is_no_program_is_refused(data: bytes) -> None:
    with pytest.raises(elf.NotElf):
        elf.is_static(data)
