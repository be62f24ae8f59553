"""Screens, on every kind of machine that has one."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgspec
import pytest

from atoll.drivers.machine.base import Console, Machine, capabilities_of
from atoll.errors import AtollError, Conflict

PATIENCE_S = 10

pytestmark = pytest.mark.parametrize("lab", ["sim", "qemu"], indirect=True)


@pytest.fixture
def machine(lab: Any) -> Machine:
    return msgspec.structs.replace(lab.machine(), screen=True)


@pytest.fixture
def driver(lab: Any, exits: Any) -> Any:
    driver = lab.driver(exits)
    assert "display" in capabilities_of(driver)
    return driver


async def size_of(screen: Console) -> tuple[int, int]:
    """The beginning of an RFB session."""
    unread = b""

    async def read(size: int) -> bytes:
        nonlocal unread
        while len(unread) < size:
            data = await asyncio.wait_for(screen.read(), PATIENCE_S)
            assert data, "the screen has ended"
            unread += data
        data, unread = unread[:size], unread[size:]
        return data

    assert await read(12) == b"RFB 003.008\n"
    await screen.write(b"RFB 003.008\n")
    assert 1 in await read((await read(1))[0])
    await screen.write(b"\x01")
    assert await read(4) == b"\0\0\0\0"
    await screen.write(b"\x01")
    width, height = struct.unpack("!HH", (await read(24))[:4])
    return width, height


async def test_a_screen_speaks_rfb_to_several_at_a_time_and_again(driver: Any, machine: Machine) -> None:
    await driver.start(machine)

    screens = await asyncio.gather(*(driver.display(machine) for _ in range(3)))
    sizes = await asyncio.gather(*(size_of(screen) for screen in screens))

    assert all(width >= 640 and height >= 350 for width, height in sizes)
    for screen in screens:
        await screen.close()
    again = await driver.display(machine)
    await size_of(again)
    await again.close()


async def test_the_next_agent_finds_the_screen_too(
    lab: Any, driver: Any, machine: Machine, new_exits: Any
) -> None:
    await driver.start(machine)
    await driver.close()

    screen = await lab.driver(new_exits).display(machine)

    await size_of(screen)
    await screen.close()


async def test_a_screen_ends_with_its_machine(driver: Any, machine: Machine) -> None:
    await driver.start(machine)
    screen = await driver.display(machine)
    await size_of(screen)

    await driver.kill(machine)

    while await asyncio.wait_for(screen.read(), PATIENCE_S):
        pass
    await screen.close()


async def test_a_machine_that_does_not_run_has_no_screen(driver: Any, machine: Machine) -> None:
    with pytest.raises(Conflict, match="not running"):
        await driver.display(machine)


async def test_a_machine_that_was_started_without_a_screen_is_refused_one(
    lab: Any, driver: Any, machine: Machine
) -> None:
    await driver.start(msgspec.structs.replace(machine, screen=False))

    with pytest.raises(AtollError, match="without one"):
        await driver.display(machine)
