"""Which servers a resolv.conf names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dns import upstreams
from atoll.guestnet.dns.upstreams import HostServers, parse

FILE = """# made by hand
search example.com
nameserver 127.0.0.53
nameserver\t2001:db8::53 # with a comment
 nameserver 192.0.2.1
nameserver 127.0.0.53
; nameserver 192.0.2.2
nameserver fe80::1%eth0
nameserver example.com
nameserver 0.0.0.0
nameserver
options edns0
nameserver 192.0.2.3
"""


def test_the_first_three_addresses_count() -> None:
    assert parse(FILE) == ("127.0.0.53", "2001:db8::53", "192.0.2.1")


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert len(parse(text)) <= upstreams.MOST


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(upstreams.clock, "monotonic", lambda: now)
    path = tmp_path / "resolv.conf"
    servers = HostServers(path)
    assert await servers() == ()
    path.write_text("nameserver 192.0.2.1\n")
    assert await servers() == ()  # a moment is not worth a look
    now += upstreams.LOOK_EVERY_S
    assert await servers() == ("192.0.2.1",)
    path.write_text("nameserver 192.0.2.2\n")
    os.utime(path, (1, 1))
    now += upstreams.LOOK_EVERY_S
    assert await servers() == ("192.0.2.2",)
    path.unlink()
    now += upstreams.LOOK_EVERY_S
    assert await servers() == ()
