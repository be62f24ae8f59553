from __future__ import annotations

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from atoll.system.link_events import decode

NEW, GONE, SOMETHING_ELSE = 16, 17, 24


def attribute(kind: int, value: bytes) -> bytes:
    content = struct.pack("=HH", 4 + len(value), kind) + value
    return content + b"\0" * (-len(content) % 4)


def message(kind: int, name: str, family: int = socket.AF_UNSPEC) -> bytes:
    """As the kernel sends it: an address before the name, a number behind it."""
    attributes = attribute(1, b"\x02\xa7\0\0\0\1") + attribute(3, name.encode() + b"\0")
    body = struct.pack("=BxHiII", family, 1, 7, 0, 0) + attributes + attribute(4, struct.pack("=I", 1500))
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_links_are_told_by_name_as_there_or_gone():
    data = message(NEW, "at-0a4d000a") + message(GONE, "at-0a4d000b") + message(SOMETHING_ELSE, "eth0")
    assert list(decode(data)) == [("at-0a4d000a", True), ("at-0a4d000b", False)]


def test_a_port_that_leaves_its_bridge_has_not_gone():
    assert list(decode(message(GONE, "at-0a4d000a", socket.AF_BRIDGE))) == []


@given(st.binary(max_size=200), st.integers(0, 80))
def test_whatever_is_read_is_read_to_its_end(noise: bytes, cut: int):
    whole = message(GONE, "at-0a4d000a")
    for data in (noise, whole[:cut] + noise, whole + noise):
        assert all(isinstance(name, str) for name, _ in decode(data))
