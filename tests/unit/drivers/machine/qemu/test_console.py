from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.drivers.machine.qemu.console import LogConsole


class Line:
    """A log that a machine appends to, and a pipe that it reads."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "console.log"
        self.log.write_bytes(b"before")
        self.typed, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.console = LogConsole(self.log, end)

    def says(self, data: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(data)


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    made = Line(tmp_path)
    yield made
    await made.console.close()
    os.close(made.typed)


async def test_what_is_written_from_now_on_is_read(line: Line):
    reading = asyncio.ensure_future(line.console.read())
    await asyncio.sleep(0.01)
    line.says(b"login: ")
    assert await asyncio.wait_for(reading, 1) == b"login: "


async def test_what_is_typed_arrives(line: Line):
    await line.console.write(b"root\n")
    assert os.read(line.typed, 100) == b"root\n"


async def test_more_than_the_guest_takes_waits_until_it_takes_it(line: Line):
    writing = asyncio.ensure_future(line.console.write(b"x" * 200_000))
    got = 0
    while got < 200_000:
        await asyncio.sleep(0.001)
        got += len(os.read(line.typed, 30_000))
    await asyncio.wait_for(writing, 1)


async def test_the_last_words_of_a_machine_are_read_before_the_end(line: Line):
    line.says(b"bye")
    line.console.end()
    assert [await line.console.read(), await line.console.read()] == [b"bye", b""]


@pytest.mark.parametrize("how", ["end", "close"])
async def test_who_waits_for_a_deaf_guest_is_let_go_with_the_machine(line: Line, how: str):
    writing = asyncio.ensure_future(line.console.write(b"x" * 200_000))
    await asyncio.sleep(0.01)
    done = getattr(line.console, how)()
    if done is not None:
        await done
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(writing, 1)


async def test_a_closed_console_reads_nothing_and_can_be_closed_again(line: Line):
    await line.console.close()
    await line.console.close()
    assert line.console.closed
    assert await line.console.read() == b""
