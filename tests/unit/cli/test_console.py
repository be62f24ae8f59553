from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.api.hypervisor import Attach
from atoll.cli import console
from atoll.cli.console import Session, send_keys


class Socket:
    """The near end of a WebSocket; a deaf one takes nothing."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.sent: list[bytes] = []
        self.deaf = deaf

    async def send_bytes(self, data: bytes) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        self.sent.append(data)


class Keys:
    def __init__(self) -> None:
        self.fd, self._end = os.pipe()

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._end)


@pytest.fixture
def keys() -> Iterator[Keys]:
    made = Keys()
    yield made
    made.close()


def session(socket: Any, **how: bool) -> Session:
    return Session(socket, "web", Attach(**how), interactive=True, quiet=True)


async def test_keys_are_sent_up_to_the_escape(keys: Keys):
    socket = Socket()
    keys.type(b"ls\r\x1drm\r")
    await asyncio.wait_for(send_keys(session(socket), keys.fd), 1)
    assert b"".join(socket.sent) == b"ls\r"


async def test_a_guest_that_takes_nothing_keeps_nobody_from_leaving(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(console, "LAST_KEYS_S", 0.01)
    leaving = asyncio.ensure_future(send_keys(session(Socket(deaf=True)), keys.fd))
    for _ in range(3):
        keys.type(b"hello?")
        await asyncio.sleep(0.01)
    keys.type(b"\x1d")
    await asyncio.wait_for(leaving, 1)


@pytest.mark.parametrize("leave", [b"\x1d", b"\x03"])
async def test_one_who_watches_sends_nothing_and_can_leave(keys: Keys, leave: bytes):
    socket = Socket()
    keys.type(b"reboot\r" + leave)
    await asyncio.wait_for(send_keys(session(socket, watch=True), keys.fd), 1)
    assert socket.sent == []
