"""Short commands that the node itself runs in a guest, for what only the guest can do. Effects: through drivers.

The guest is its owner's: whatever it answers is not trusted, is kept short, and is waited for only so long.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from atoll.drivers.machine.base import CanExec, Process
from atoll.errors import AtollError
from atoll.hypervisor.launch.machines import Machines
from atoll.model.command import Command
from atoll.model.vm import VM

MOST_SAID = 400
"""Bytes of what a command wrote that are kept."""


class Finished(Struct, frozen=True):
    """How a command ended, and the first of what it said; without a status it could not be run."""

    status: int | None
    said: str

    @property
    def worked(self) -> bool:
        return self.status == 0


async def run_in(machines: Machines, vm: VM, *argv: str, timeout_s: float) -> Finished:
    """Run it as root. A guest that cannot, or does not answer in time, is no failure of the node's."""
    driver = machines.driver(vm.driver)
    if not isinstance(driver, CanExec):
        return Finished(None, f"machines of kind {vm.driver} run no commands")
    try:
        if driver.needs_agent and not machines.image(vm).agent:
            return Finished(None, f"image {vm.image} has no guest agent")
        async with asyncio.timeout(timeout_s):
            return await _finished(await driver.exec(machines.machine(vm), Command(argv)))
    except TimeoutError:
        return Finished(None, f"the guest did not answer within {timeout_s:g} s")
    except AtollError as error:
        return Finished(None, error.brief)


async def _finished(process: Process) -> Finished:
    said = b""
    try:
        while not isinstance(come := await process.read(), int):
            said += come.data[: MOST_SAID - len(said)]
        lines = said.decode(errors="replace").strip().splitlines()
        return Finished(come, lines[0] if lines else "")
    finally:
        await process.close()
