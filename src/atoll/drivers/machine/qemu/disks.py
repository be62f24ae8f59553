"""The disks of a QEMU, opened for it: at its start, and over its monitor while it runs. Names are in block.py.

Effects: opens files, talks to the monitor. QEMU has no right to any path; disks reach it as open files only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from atoll.drivers.machine.base import Disk, Machine
from atoll.drivers.machine.qemu.block import (
    Places,
    block_device,
    block_node,
    device_of,
    first_free,
    is_behind_port,
    node_name,
    places_of,
    sets_of,
)
from atoll.drivers.machine.qemu.monitor import Watch
from atoll.errors import Conflict, HostFailure, TimedOut
from atoll.system import clock, disks, processes
from atoll.system.undo import Undo

LET_GO_S = 10.0
_DYING_S = 1.0
_POLL_S = 0.02


@contextlib.asynccontextmanager
async def opened(machine: Machine) -> AsyncIterator[tuple[int, ...]]:
    """The disks that a machine starts with, open for the time of the block: QEMU gets copies."""
    with contextlib.ExitStack() as ours:
        numbers = []
        for disk in machine.disks:
            numbers.append(await _open(disk, machine))
            ours.callback(os.close, numbers[-1])
        yield tuple(numbers)


async def _open(disk: Disk, machine: Machine) -> int:
    if disk.path is None:
        descriptor = disks.allocate_in_memory(disk.name, disk.size_mib, machine.uid)
        try:
            if disk.ext4:
                await disks.make_ext4(Path(f"/proc/self/fd/{descriptor}"))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    disks.check_standing_alone(disk.path, disk.format)
    try:
        # QEMU's copy of it keeps tools away for as long as the machine has the disk.
        return await disks.claim(disk.path)
    except HostFailure as error:
        raise HostFailure(
            f"machine {machine.name}: disk {disk.name}: {error.brief}",
            hint="restore the file, or delete the volume",
        ) from error


async def places(watch: Watch) -> Places:
    """Where the disks of a running machine are."""
    return places_of(await _devices(watch))


async def free_port(watch: Watch) -> int | None:
    """A port of a running machine that nothing is plugged into."""
    return first_free(await _devices(watch))


async def is_fixed(watch: Watch, name: str) -> bool:
    """Whether the machine has this disk where none can be unplugged: on a microvm, or behind IDE."""
    device = device_of(name, await _devices(watch))
    return device is not None and not is_behind_port(device)


async def attach(machine: Machine, watch: Watch, disk: Disk) -> None:
    devices = await _devices(watch)
    if device_of(disk.name, devices) is not None:
        return
    port = first_free(devices)
    if port is None:
        raise Conflict(
            f"machine {machine.name}: attaching disk {disk.name}: it has no port left",
            hint="start it again: a machine that starts has room for two more",
        )
    async with Undo() as undo:
        descriptor = await _open(disk, machine)
        try:
            file_set = await watch.add_file(descriptor, disk.name)
        finally:
            os.close(descriptor)
        undo.add(_take_back, watch, "remove-fd", {"fdset-id": file_set})
        await watch.execute("blockdev-add", LET_GO_S, block_node(disk, file_set))
        undo.add(_take_back, watch, "blockdev-del", {"node-name": node_name(disk.name)})
        await watch.execute("device_add", LET_GO_S, block_device(disk, port))
        undo.commit()


async def _take_back(watch: Watch, command: str, arguments: dict[str, object]) -> None:
    """A machine that has ended meanwhile has nothing any more."""
    try:
        await watch.execute(command, LET_GO_S, arguments)
    except (HostFailure, TimedOut):
        if not await processes.wait_gone(watch.process, _DYING_S):
            raise


async def grow(watch: Watch, disk: Disk) -> None:
    size = {"node-name": node_name(disk.name), "size": disk.size_mib << 20}
    await watch.execute("block_resize", LET_GO_S, size)


async def detach(machine: Machine, watch: Watch, name: str) -> None:
    until = clock.monotonic() + LET_GO_S
    device = device_of(name, await _devices(watch))
    if device is not None:
        await watch.execute("device_del", LET_GO_S, {"id": device})
        while device_of(name, await _devices(watch)) is not None:
            if clock.monotonic() > until:
                raise Conflict(
                    f"machine {machine.name}: detaching disk {name}: the guest keeps it",
                    hint="unmount it in the guest, or stop the VM",
                )
            await asyncio.sleep(_POLL_S)
    # What is left of one that went half-way too. QEMU lets go of the file a moment after the device has gone.
    while await _has_node(watch, name):
        with contextlib.suppress(HostFailure):
            await watch.execute("blockdev-del", LET_GO_S, {"node-name": node_name(name)})
            break
        if clock.monotonic() > until:
            raise HostFailure(
                f"machine {machine.name}: detaching disk {name}: QEMU keeps it", hint="stop the VM"
            )
        await asyncio.sleep(_POLL_S)
    for file_set in sets_of(name, await watch.execute("query-fdsets")):
        await watch.execute("remove-fd", LET_GO_S, {"fdset-id": file_set})


async def _has_node(watch: Watch, name: str) -> bool:
    nodes = await watch.execute("query-named-block-nodes")
    return any(node["node-name"] == node_name(name) for node in nodes)


async def _devices(watch: Watch) -> list[str]:
    found = await watch.execute("qom-list", LET_GO_S, {"path": "/machine/peripheral"})
    return [each["name"] for each in found]
