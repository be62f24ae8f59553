"""The serial console over a WebSocket: a simulated guest echoes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import WSMsgType
from msgspec.structs import replace

from atoll.api import hypervisor as api
from atoll.api.hypervisor import Attach
from atoll.errors import Conflict, Denied, Invalid

BANNER = b"web: simulated guest\r\n"
PATIENCE_S = 10


class Screen:
    """What has come over one WebSocket so far."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.text = b""
        self.told: list[tuple[bool, str]] = []
        self.text_when_told: list[bytes] = []
        self.ended: tuple[int, str] | None = None

    async def _next(self) -> None:
        message = await self.socket.receive(PATIENCE_S)
        if message.type is WSMsgType.BINARY:
            self.text += message.data
        elif message.type is WSMsgType.TEXT:
            note = msgspec.json.decode(message.data, type=api.Writer)
            self.told.append((note.writer, note.by))
            self.text_when_told.append(self.text)
        else:
            self.ended = (message.data, message.extra)

    async def until(self, text: bytes) -> bytes:
        while not self.text.endswith(text):
            assert self.ended is None, self.text
            await self._next()
        return self.text

    async def until_told(self, *notes: tuple[bool, str]) -> None:
        while len(self.told) < len(notes):
            await self._next()
        assert self.told == list(notes)

    async def until_end(self) -> tuple[int, str]:
        while self.ended is None:
            await self._next()
        return self.ended

    async def type(self, keys: bytes) -> None:
        await self.socket.send_bytes(keys)


@asynccontextmanager
async def console(user, vm: str = "web", **how: bool):
    async with user.connect(api.VM_CONSOLE, {"vm": vm}, query=Attach(**how)) as socket:
        yield Screen(socket)


async def test_what_is_typed_reaches_the_guest_and_its_answer_comes_back(ann):
    await ann.create("web")
    async with console(ann, history=False) as screen:
        await screen.type(b"hello\r")
        assert await screen.until(b"hello\r") == b"hello\r"
    log = b"".join([chunk async for chunk in ann.download(api.VM_LOG, {"vm": "web"})])
    assert log.endswith(b"hello\r")


async def test_who_comes_gets_all_that_was_written_then_who_types_then_what_comes(ann, node):
    machine = node.machine(await ann.create("web"))
    node.driver.guest_writes(machine, b"booting\r\n")
    async with console(ann) as screen:
        await screen.until_told((True, "ann"))
        node.driver.guest_writes(machine, b"login: ")
        assert await screen.until(b"login: ") == BANNER + b"booting\r\nlogin: "
    assert screen.text_when_told == [BANNER + b"booting\r\n"]


async def test_no_byte_is_lost_or_doubled_for_those_who_come_while_the_guest_writes(ann, oper, node):
    machine = node.machine(await ann.create("web"))
    lines = [b"line %d\r\n" % number for number in range(400)]

    async def write() -> None:
        for number, line in enumerate(lines):
            node.driver.guest_writes(machine, line)
            if number % 3 == 0:
                await asyncio.sleep(0.001)

    async def look(user, delay_s: float) -> bytes:
        await asyncio.sleep(delay_s)
        async with console(user, watch=True) as screen:
            return await screen.until(lines[-1])

    seen = await asyncio.gather(*(look((ann, oper)[n % 2], 0.02 * n) for n in range(8)), write())
    assert seen[:8] == [BANNER + b"".join(lines)] * 8


async def test_two_see_the_same_and_the_first_types(ann, oper):
    await ann.create("web")
    async with console(ann, history=False) as first, console(oper, history=False) as second:
        await second.until_told((False, "ann"))
        for keys in (b"ignored", b"ignored"):
            await second.type(keys)
        await second.until_told((False, "ann"), (False, "ann"))
        await first.type(b"typed")
        assert [await first.until(b"typed"), await second.until(b"typed")] == [b"typed", b"typed"]
    assert first.told == [(True, "ann")]
    assert len(second.told) == 2


async def test_when_the_writer_leaves_the_next_to_type_writes(ann, oper):
    await ann.create("web")
    async with console(oper, history=False) as second:
        async with console(ann, history=False, take=True) as first:
            await first.until_told((True, "ann"))
            await second.until_told((True, "oper"), (False, "ann"))
        while not second.text:
            await second.type(b"x")
            await asyncio.sleep(0.01)
            await second._next()
        assert second.told[-1] == (True, "oper")


async def test_an_owner_takes_the_keyboard_and_both_are_told(ann, oper):
    await ann.create("web")
    async with console(oper, history=False) as first:
        await first.until_told((True, "oper"))
        async with console(ann, history=False, take=True) as second:
            await first.until_told((True, "oper"), (False, "ann"))
            await second.until_told((True, "ann"))
            await first.type(b"ignored")
            await first.until_told((True, "oper"), (False, "ann"), (False, "ann"))
            await second.type(b"typed")
            assert await first.until(b"typed") == b"typed"


async def test_who_does_not_own_the_vm_takes_no_keyboard(ann, oper):
    await ann.create("web")
    with pytest.raises(Denied, match="oper may not take the keyboard of VM web"):
        async with console(oper, take=True):
            pass


async def test_one_who_only_watches_never_types_even_alone(ann):
    await ann.create("web")
    async with console(ann, watch=True, history=False) as watcher:
        await watcher.until_told((False, ""))
        await watcher.type(b"ignored")
        await watcher.until_told((False, ""), (False, ""))
        async with console(ann, history=False) as writer:
            await writer.type(b"typed")
            assert await watcher.until(b"typed") == b"typed"


async def test_to_watch_and_to_take_is_a_contradiction(ann):
    await ann.create("web")
    with pytest.raises(Invalid, match="take True: contradicts watch"):
        await ann.stream_raw(
            replace(api.VM_CONSOLE, path="/v1/vms/web/console"), b"", "?watch=true&take=true"
        )


async def test_a_console_can_be_left_and_joined_again(ann):
    await ann.create("web")
    for word in (b"one", b"two", b"three"):
        async with console(ann, history=False) as screen:
            await screen.type(word)
            assert await screen.until(word) == word
    async with console(ann) as screen:
        assert await screen.until(b"three") == BANNER + b"onetwothree"


async def test_a_console_ends_with_its_machine_and_its_last_words(ann, node):
    machine = node.machine(await ann.create("web"))
    async with console(ann) as screen:
        await screen.until(BANNER)
        node.driver.guest_writes(machine, b"panic\r\n")
        await node.driver.guest_crashes(machine)
        assert (await screen.until_end())[0] == 1000
    assert screen.text == BANNER + b"panic\r\n"


async def test_the_history_is_there_after_an_agent_was_replaced(ann, node):
    await ann.create("web")
    await node.restart()
    async with node.user("ann") as user, console(user) as screen:
        await screen.type(b"still")
        assert await screen.until(b"still") == BANNER + b"still"


async def test_the_console_of_a_vm_that_is_down_is_refused_before_the_socket_opens(ann):
    await ann.create("web")
    await ann.halt("web")
    with pytest.raises(Conflict, match="VM web: is stopped, its console is closed"):
        async with console(ann):
            pass


async def test_a_vm_made_without_a_console_has_a_log_and_no_console(ann):
    await ann.create("web", console="none")
    with pytest.raises(Conflict, match="VM web: was made without a console"):
        async with console(ann):
            pass
    assert b"".join([chunk async for chunk in ann.download(api.VM_LOG, {"vm": "web"})]) == BANNER


async def test_a_console_that_fails_to_open_is_closed_with_the_reason(ann, node):
    await ann.create("web")
    node.faults.fail.add("console")
    async with console(ann) as screen:
        code, reason = await screen.until_end()
    assert code == 1011
    assert "console was told to fail" in reason


async def test_a_stranger_sees_nothing(ann, bob):
    await ann.create("web")
    with pytest.raises(Denied, match=r"bob may not call vm\.console on VM web"):
        async with console(bob, watch=True):
            pass
