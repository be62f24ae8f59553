from __future__ import annotations

import struct

import pytest

from atoll.drivers.machine.sim_screen import HEIGHT, WIDTH, SimScreen


async def test_a_viewer_that_does_as_the_protocol_says_learns_size_and_name():
    screen = SimScreen("web")
    assert await screen.read() == b"RFB 003.008\n"
    for piece in (b"RFB 00", b"3.008\n"):
        await screen.write(piece)
    assert await screen.read() == b"\x01\x01"
    await screen.write(b"\x01\x01")
    assert await screen.read() == b"\0\0\0\0"
    opening = await screen.read()
    assert struct.unpack("!HH", opening[:4]) == (WIDTH, HEIGHT)
    assert opening[20:] == b"\0\0\0\x03web"


async def test_a_kind_of_security_that_was_not_offered_is_refused():
    screen = SimScreen("web")
    await screen.write(b"RFB 003.008\n\x02")
    assert [await screen.read() for _ in range(3)][2] == b"\0\0\0\x01"


async def test_a_closed_screen_has_ended():
    screen = SimScreen("web")
    await screen.close()
    assert [await screen.read(), await screen.read(), await screen.read()] == [b"RFB 003.008\n", b"", b""]
    with pytest.raises(ConnectionResetError):
        await screen.write(b"x")
