"""Classic BPF: which frames the kernel gives to a packet socket. Pure; wire.py attaches them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

LOAD_BYTE, LOAD_HALF, LOAD_HALF_BEYOND = 0x30, 0x28, 0x48
"""From a place in the frame; the last, from one beyond the header whose size LOAD_HEADER_SIZE took."""
LOAD_HEADER_SIZE = 0xB1
IF_EQUAL, IF_ABOVE, IF_SET = 0x15, 0x25, 0x45
PACKET_TYPE = 0xFFFFF000 + 4
"""A place that is not in the frame: whom it is for, as the kernel sees it. Above these: others, and what we sent."""
TO_US, TO_ALL, TO_GROUP = 0, 1, 2

_GIVE = 0x06
_INSTRUCTION = struct.Struct("=HBBI")

Step = tuple[int, int, bool | None]
"""What to do, with what, and the outcome of a question at which the frame is dropped."""


def assemble(steps: Sequence[Step]) -> bytes:
    """A filter that passes the whole frame, unless one of the steps drops it."""
    code = b""
    for place, (operation, operand, drop_when) in enumerate(steps):
        away = len(steps) - place  # behind the last step is what passes, and behind that what drops
        code += _INSTRUCTION.pack(operation, away * (drop_when is True), away * (drop_when is False), operand)
    return code + _INSTRUCTION.pack(_GIVE, 0, 0, 0xFFFFFFFF) + DROP_ALL


DROP_ALL = _INSTRUCTION.pack(_GIVE, 0, 0, 0)
"""A filter that passes nothing."""
