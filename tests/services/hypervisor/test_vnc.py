"""The screen of a VM, over a WebSocket."""

from __future__ import annotations

import asyncio
import struct

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.errors import Conflict, Denied, Invalid
from atoll.model.vm import ConsoleKind


class Viewer:
    """The beginning of an RFB session."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.unread = b""

    async def read(self, size: int) -> bytes:
        while len(self.unread) < size:
            self.unread += await self.socket.receive_bytes(timeout=5)
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    async def size(self) -> tuple[int, int]:
        assert await self.read(12) == b"RFB 003.008\n"
        await self.socket.send_bytes(b"RFB 003.008\n")
        assert 1 in await self.read((await self.read(1))[0])
        await self.socket.send_bytes(b"\x01")
        assert await self.read(4) == b"\0\0\0\0"
        await self.socket.send_bytes(b"\x01")
        width, height, length = struct.unpack("!HH16xI", await self.read(24))
        await self.read(length)
        return width, height


async def test_a_viewer_learns_the_size_of_the_screen(ann):
    vm = await ann.create("web", console="vnc")
    assert vm.console == "vnc"
    async with ann.connect(api.VM_VNC, {"vm": "web"}) as socket:
        assert await Viewer(socket).size() == (640, 480)


async def test_several_may_look_at_a_time(ann, oper):
    await ann.create("web", console="vnc")
    async with (
        ann.connect(api.VM_VNC, {"vm": "web"}) as first,
        oper.connect(api.VM_VNC, {"vm": "web"}) as second,
    ):
        sizes = await asyncio.gather(Viewer(first).size(), Viewer(second).size())
    assert sizes == [(640, 480)] * 2


async def test_a_vm_with_a_screen_has_its_serial_console_too(ann):
    await ann.create("web", console="vnc")
    async with ann.connect(api.VM_CONSOLE, {"vm": "web"}) as console:
        assert (await console.receive(5)).data == b"web: simulated guest\r\n"


async def test_a_screen_ends_with_its_machine(ann):
    await ann.create("web", console="vnc")
    async with ann.connect(api.VM_VNC, {"vm": "web"}) as socket:
        await Viewer(socket).size()
        await ann.halt("web")
        assert (await socket.receive(5)).data == 1000


@pytest.mark.parametrize("kind", ["serial", "none"])
async def test_a_vm_that_was_made_without_a_screen_has_none(ann, kind: str):
    await ann.create("web", console=kind)
    with pytest.raises(Conflict, match="VM web: has no screen"):
        async with ann.connect(api.VM_VNC, {"vm": "web"}):
            pass


async def test_the_screen_of_a_vm_that_is_down_is_dark(ann):
    await ann.create("web", console="vnc")
    await ann.halt("web")
    with pytest.raises(Conflict, match="VM web: is stopped, its screen is dark"):
        async with ann.connect(api.VM_VNC, {"vm": "web"}):
            pass


async def test_a_screen_that_fails_to_open_is_closed_with_the_reason(ann, node):
    await ann.create("web", console="vnc")
    node.faults.fail.add("display")
    async with ann.connect(api.VM_VNC, {"vm": "web"}) as socket:
        closed = await socket.receive(5)
    assert closed.data == 1011
    assert "display was told to fail" in closed.extra


async def test_a_stranger_sees_nothing(ann, bob):
    await ann.create("web", console="vnc")
    with pytest.raises(Denied, match=r"bob may not call vm\.vnc on VM web"):
        async with bob.connect(api.VM_VNC, {"vm": "web"}):
            pass


async def test_a_machine_type_without_a_screen_is_refused_one(ann):
    with pytest.raises(Invalid, match="console 'vnc': machine type microvm has no screen"):
        await ann.create("web", console="vnc", machine_type="microvm")


async def test_a_screen_that_was_asked_for_later_comes_with_the_next_start(ann):
    await ann.create("web")
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(console=ConsoleKind.VNC))
    with pytest.raises(Conflict, match="VM web: has no screen"):
        async with ann.connect(api.VM_VNC, {"vm": "web"}):
            pass
    await ann.halt("web")
    await ann.begin("web")
    async with ann.connect(api.VM_VNC, {"vm": "web"}) as socket:
        assert await Viewer(socket).size() == (640, 480)
