from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.api.hypervisor import Writer
from atoll.drivers.machine.base import Console
from atoll.errors import Conflict
from atoll.hypervisor.consoles import consoles
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.consoles.consoles import Consoles
from atoll.hypervisor.consoles.keyboard import Seat
from samples import a_vm

VM = a_vm()


class Guest:
    """A serial line with one end for us and one for the console, and its log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: list[bytes] = []
        self.opened = 0
        self.open = False
        self.lost = False
        self.slow = False
        self.deaf = False

    def says(self, data: bytes, *, stirs: bool = True) -> None:
        """The console has it a moment before the log; `stirs`: or never."""
        if stirs:
            self.said.put_nowait(data)
        with self.log.open("ab") as log:
            log.write(data)

    async def connect(self) -> Console:
        if self.open:
            raise Conflict("the console is open already")
        self.opened += 1
        self.open = True
        return self

    async def read(self) -> bytes:
        data = await self.said.get()
        if self.lost:
            raise ConnectionResetError
        if self.slow and not data:
            await settle()
        return data

    async def write(self, data: bytes) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        self.heard.append(data)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.open = False
        self.said.put_nowait(b"")


class Person:
    """The far end of a WebSocket."""

    def __init__(self, user: str = "ann", *, watches: bool = False) -> None:
        self.seat = Seat(user, watches=watches)
        self.typed: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen = b""
        self.told: list[tuple[bool, str]] = []
        self.started_by = asyncio.Event()
        self.stuck = False

    async def receive(self) -> bytes:
        return await self.typed.get()

    async def send(self, data: bytes) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.seen += data
        self.started_by.set()

    async def tell(self, message: Any) -> None:
        assert isinstance(message, Writer)
        self.told.append((message.writer, message.by))
        self.started_by.set()

    async def sees(self, text: bytes) -> None:
        async with asyncio.timeout(2):
            while not self.seen.endswith(text):
                self.started_by.clear()
                await self.started_by.wait()

    def leave(self) -> None:
        self.typed.put_nowait(b"")


Attach = Callable[..., Awaitable[asyncio.Task[None]]]


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path / "console.log")


@pytest.fixture
def attach(guest: Guest) -> Attach:
    node = Consoles(BootLogs(lambda ip: guest.log.parent))

    async def attach(person: Person, **how: bool) -> asyncio.Task[None]:
        task = asyncio.create_task(node.attach(VM, guest.connect, lambda: None, person.seat, person, **how))
        await settle()
        return task

    return attach


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_the_guest_writes_is_seen_and_what_is_typed_is_heard(guest: Guest, attach: Attach):
    person = Person()
    task = await attach(person)
    guest.says(b"login: ")
    await person.sees(b"login: ")
    person.typed.put_nowait(b"root\n")
    await settle()
    assert guest.heard == [b"root\n"]
    person.leave()
    await task


async def test_who_comes_sees_what_was_written_before_then_what_comes_and_nothing_twice(
    guest: Guest, attach: Attach
):
    guest.says(b"booting\r\n", stirs=False)
    first, second, third = Person(), Person(), Person()
    tasks = [await attach(first)]
    guest.says(b"login: ")
    await first.sees(b"login: ")
    tasks += [await attach(second), await attach(third, history=False)]
    guest.says(b"root\r\n")
    for person in (first, second, third):
        await person.sees(b"root\r\n")
    assert first.seen == second.seen == b"booting\r\nlogin: root\r\n"
    assert third.seen == b"root\r\n"
    for person in (first, second, third):
        person.leave()
    await asyncio.gather(*tasks)


async def test_the_end_of_the_history_is_told(guest: Guest, attach: Attach):
    guest.says(b"booting\r\n", stirs=False)
    person = Person()
    seen_when_told: list[bytes] = []
    tell = person.tell

    async def telling(message: Any) -> None:
        guest.says(b"more")
        seen_when_told.append(person.seen)
        await tell(message)

    person.tell = telling  # type: ignore[method-assign]
    task = await attach(person)
    await person.sees(b"more")
    assert (seen_when_told, person.told) == ([b"booting\r\n"], [(True, "ann")])
    person.leave()
    await task


async def test_a_log_that_is_behind_its_console_is_looked_at_again(guest: Guest, attach: Attach):
    person = Person()
    task = await attach(person)
    guest.said.put_nowait(b"early")
    await settle()
    assert person.seen == b""
    guest.says(b"early", stirs=False)
    await person.sees(b"early")
    person.leave()
    await task


async def test_everybody_sees_and_only_the_first_types(guest: Guest, attach: Attach):
    first, second = Person("ann"), Person("bob")
    tasks = [await attach(first), await attach(second)]
    assert guest.opened == 1
    guest.says(b"hello")
    await first.sees(b"hello")
    await second.sees(b"hello")
    for keys in (b"rm -rf /\n", b"please\n"):
        second.typed.put_nowait(keys)
    first.typed.put_nowait(b"ls\n")
    await settle()
    assert guest.heard == [b"ls\n"]
    assert (first.told, second.told) == ([(True, "ann")], [(False, "ann")] * 2)
    first.leave()
    await tasks[0]
    second.typed.put_nowait(b"id\n")
    await settle()
    assert guest.heard == [b"ls\n", b"id\n"]
    assert second.told[2:] == [(True, "bob")]
    second.leave()
    await tasks[1]


async def test_who_takes_the_keyboard_types_and_the_one_before_is_told_though_the_guest_is_silent(
    guest: Guest, attach: Attach
):
    first, second = Person("ann"), Person("bob")
    tasks = [await attach(first), await attach(second, take=True)]
    assert (first.told, second.told) == ([(True, "ann"), (False, "bob")], [(True, "bob")])
    first.typed.put_nowait(b"mine\n")
    second.typed.put_nowait(b"ls\n")
    await settle()
    assert guest.heard == [b"ls\n"]
    for person in (first, second):
        person.leave()
    await asyncio.gather(*tasks)


async def test_who_only_watches_never_types(guest: Guest, attach: Attach):
    watcher = Person(watches=True)
    task = await attach(watcher)
    watcher.typed.put_nowait(b"x")
    await settle()
    assert guest.heard == []
    watcher.leave()
    await task


async def test_the_last_to_leave_closes_and_the_next_opens_again(guest: Guest, attach: Attach):
    for _ in range(3):
        person = Person()
        task = await attach(person)
        person.leave()
        await task
        assert not guest.open
    assert guest.opened == 3


async def test_one_who_comes_while_the_last_leaves_gets_a_fresh_console(guest: Guest, attach: Attach):
    first, second = Person(), Person()
    leaving = await attach(first)
    first.leave()
    task = await attach(second)
    await leaving
    guest.says(b"still here")
    await second.sees(b"still here")
    second.leave()
    await task


async def test_a_console_that_ends_slowly_does_not_take_the_next_one_with_it(guest: Guest, attach: Attach):
    guest.slow = True
    first, second, third = Person(), Person(), Person()
    leaving = await attach(first)
    first.leave()
    await leaving
    tasks = [await attach(second)]
    await settle()
    tasks.append(await attach(third))
    assert guest.opened == 2
    guest.says(b"hello")
    await second.sees(b"hello")
    await third.sees(b"hello")
    for person in (second, third):
        person.leave()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("lost", [False, True])
async def test_when_the_machine_goes_everybody_sees_its_last_words_and_is_let_go(
    guest: Guest, attach: Attach, lost: bool
):
    people = [Person(), Person()]
    tasks = [await attach(person) for person in people]
    guest.lost = lost
    guest.said.put_nowait(b"")
    guest.says(b"reboot: Power down\r\n", stirs=False)
    await asyncio.wait_for(asyncio.gather(*tasks), 1)
    assert [person.seen for person in people] == [b"reboot: Power down\r\n"] * 2
    assert not guest.open


async def test_one_who_does_not_read_holds_nobody_up(guest: Guest, attach: Attach):
    stuck, reader = Person(), Person()
    stuck.stuck = True
    tasks = [await attach(stuck), await attach(reader)]
    for number in range(20):
        guest.says(b"%d" % number)
        await reader.sees(b"%d" % number)
    stuck.leave()
    reader.leave()
    await asyncio.gather(*tasks)


async def test_one_who_types_to_a_deaf_guest_can_leave(
    guest: Guest, attach: Attach, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consoles, "TYPE_TIMEOUT_S", 0.01)
    guest.deaf = True
    person = Person()
    task = await attach(person)
    person.typed.put_nowait(b"hello?")
    person.leave()
    await asyncio.wait_for(task, 1)


async def test_a_console_that_cannot_be_had_is_refused_and_can_be_tried_again(guest: Guest, attach: Attach):
    guest.open = True
    with pytest.raises(Conflict):
        await (await attach(Person()))
    guest.open = False
    person = Person()
    task = await attach(person)
    assert guest.open
    person.leave()
    await task


async def test_a_log_that_cannot_be_read_is_an_error_and_leaves_nothing_open(guest: Guest, attach: Attach):
    guest.log.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        await (await attach(Person()))
    assert not guest.open


async def test_a_cancelled_client_leaves_nothing_open(guest: Guest, attach: Attach):
    task = await attach(Person())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not guest.open
