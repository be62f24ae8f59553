from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atoll.errors import HostFailure
from atoll.hypervisor.consoles.relay import relay


class End:
    """A socket or a stream: what it gives, and what it got. `at_end` is what it does when it has no more."""

    def __init__(self, *gives: bytes, at_end: BaseException | None = None) -> None:
        self.gives = list(gives)
        self.got: list[bytes] = []
        self.at_end = at_end
        self.closed = False

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        if self.gives:
            return self.gives.pop(0)
        if self.at_end is not None:
            raise self.at_end
        return await asyncio.Event().wait() or b""

    async def send(self, data: bytes) -> None:
        self.got.append(data)

    async def tell(self, message: Any) -> None:
        raise AssertionError("nothing is told on this route")

    async def close(self) -> None:
        self.closed = True

    read = receive
    write = send


async def test_everything_goes_both_ways_until_one_side_ends():
    stream, socket = End(b"RFB 003.008\n", b"\x01\x01"), End(b"RFB 003.008\n", b"\x01", b"")
    await asyncio.wait_for(relay(stream, socket), 1)
    assert (stream.got, socket.got) == ([b"RFB 003.008\n", b"\x01"], [b"RFB 003.008\n", b"\x01\x01"])
    assert stream.closed


async def test_a_side_that_is_lost_has_ended():
    stream = End(at_end=ConnectionResetError())
    await asyncio.wait_for(relay(stream, End()), 1)
    assert stream.closed


async def test_a_failure_is_told():
    stream = End(at_end=HostFailure("the screen is broken"))
    with pytest.raises(HostFailure, match="broken"):
        await asyncio.wait_for(relay(stream, End()), 1)
    assert stream.closed
