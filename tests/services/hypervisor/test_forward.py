"""Connections to guests through the API: bytes both ways, each side's end, and who may."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import WSMsgType

from atoll.api.codec import decoder, encode
from atoll.api.forwards import VM_FORWARD, End, Target
from atoll.api.hypervisor import VM_STOP, StopVm
from atoll.errors import Conflict, Denied, Malformed, NotFound
from atoll.hypervisor.hands.places import Places

PATIENCE_S = 10
MUCH = bytes(range(256)) * 16_384


class Guest:
    """What listens in the guest: answers with what it was sent, once its caller has sent all."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.callers = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.callers += 1
        try:
            data = await reader.read()
            writer.write(data)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.left.set()
            writer.close()

    async def stop(self) -> None:
        self._server.close()


@pytest.fixture
async def guest():
    guest = Guest()
    await guest.start()
    yield guest
    await guest.stop()


@pytest.fixture
async def web(ann):
    return await ann.create("web")


async def said(socket) -> tuple[bytes, End]:
    """All bytes that come, and the end of them."""
    data = bytearray()
    while (message := await socket.receive(PATIENCE_S)).type is WSMsgType.BINARY:
        data += message.data
    assert message.type is WSMsgType.TEXT, message
    return bytes(data), decoder(End).decode(message.data)


async def test_a_question_whether_one_may_connects_to_nothing(ann, bob, web, guest):
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port, check=True)) as socket:
        assert await said(socket) == (b"", End())
        assert (await socket.receive(PATIENCE_S)).type is WSMsgType.CLOSE
    assert guest.callers == 0
    with pytest.raises(Denied):
        async with bob.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port, check=True)):
            pass


async def test_each_side_ends_by_itself_and_nothing_is_lost(ann, web, guest):
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)) as socket:
        for start in range(0, len(MUCH), 60_000):
            await socket.send_bytes(MUCH[start : start + 60_000])
        await socket.send_str(encode(End()).decode())
        assert await said(socket) == (MUCH, End())
        assert (await socket.receive(PATIENCE_S)).type is WSMsgType.CLOSE


async def test_a_port_that_nobody_listens_at_is_told_with_the_reason(ann, web, guest):
    await guest.stop()
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)) as socket:
        _, end = await said(socket)
    assert end.error is not None
    assert (end.error.code, f"port {guest.port} of" in end.error.brief) == ("conflict", True)
    assert "connection refused" in end.error.brief


async def test_a_caller_that_goes_leaves_the_guest(ann, web, guest):
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)) as socket:
        await socket.send_bytes(b"half")
    async with asyncio.timeout(PATIENCE_S):
        await guest.left.wait()


async def test_what_is_no_end_is_refused(ann, web, guest):
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)) as socket:
        await socket.send_str('{"more": 1}')
        _, end = await said(socket)
    assert end.error is not None
    assert end.error.code == Malformed.code


async def test_it_is_for_owners_and_for_vms_that_run(ann, bob, web, guest):
    with pytest.raises(Denied):
        async with bob.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)):
            pass
    with pytest.raises(NotFound):
        async with ann.connect(VM_FORWARD, {"vm": "none"}, query=Target(guest.port)):
            pass
    await ann.call(VM_STOP, {"vm": "web"}, body=StopVm(0))
    with pytest.raises(Conflict, match="VM web is stopped"):
        async with ann.connect(VM_FORWARD, {"vm": "web"}, query=Target(guest.port)):
            pass


async def test_one_vm_has_so_many_and_a_place_is_free_again(ann, node, web, guest):
    node.service.forwards.places = Places("vm forward", "connections that are open", 1, 8)
    target = Target(guest.port)
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=target) as first:
        await first.send_bytes(b"x")
        async with ann.connect(VM_FORWARD, {"vm": "web"}, query=target) as second:
            _, end = await said(second)
        assert end.error is not None
        assert "VM web has 1 connections that are open" in end.error.brief
        await first.send_str(encode(End()).decode())
        assert await said(first) == (b"x", End())
    async with ann.connect(VM_FORWARD, {"vm": "web"}, query=target) as third:
        await third.send_str(encode(End()).decode())
        assert await said(third) == (b"", End())
