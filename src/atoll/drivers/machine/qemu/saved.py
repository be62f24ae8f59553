"""The memory of a virtual machine that is kept on disk: written by its QEMU, for another one to go on from.

    <directory of the VM>/qemu.saved/state    memory and devices, as QEMU writes them
    <directory of the VM>/qemu.saved/shape    what the machine must be like that goes on from them

The shape is written last: without it nothing is kept. Effects: files, and through the monitor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.qemu import disks, record
from atoll.drivers.machine.qemu.argv import Accelerator, board_of
from atoll.drivers.machine.qemu.block import Places
from atoll.drivers.machine.qemu.launch import Memory
from atoll.drivers.machine.qemu.monitor import Watch
from atoll.drivers.machine.qemu.template import cpu_model
from atoll.errors import AtollError, Conflict
from atoll.system import aside, file_limits, files, host
from atoll.system.undo import Undo

FORMAT = "1"
STATE, SHAPE = "state", "shape"
LEAST_S = 60.0
SLOWEST_MIB_S = 10
"""How long a save may take: a disk that is slower than this is as good as none."""
_MARGIN = 64 << 20
_MOST_SHAPE = 1 << 16


class Shape(Struct, frozen=True):
    """What the machine must be like that goes on from what is kept."""

    forked: bool
    """It began as a copy of a template, and has what copies have."""
    places: Places
    basis: dict[str, str]
    """All else that both must have in common."""


def directory(machine: Machine) -> Path:
    return machine.directory / "qemu.saved"


def basis_of(machine: Machine, accelerator: Accelerator, binary: str) -> dict[str, str]:
    """What a QEMU must have in common with the one that wrote it. Looks at the host."""
    program = host.require_tool(binary)
    seen = program.stat()
    cpu = cpu_model(Path("/proc/cpuinfo").read_text()) if accelerator == "kvm" else ""
    return {
        "format": FORMAT,
        "QEMU": f"{program} {seen.st_size} {seen.st_mtime_ns}",
        "accelerator": accelerator,
        "CPU": cpu,
        "image": machine.image_digest,
        "machine": _likeness(machine),
    }


def _likeness(machine: Machine) -> str:
    """All of its hardware, in short. Pure."""
    nics = [(nic.mac, nic.mtu) for nic in machine.nics]
    owned = [(disk.name, disk.size_mib, str(disk.interface)) for disk in machine.disks]
    facts = (board_of(machine), machine.memory_mib, machine.vcpus, machine.cmdline, nics, sorted(owned))
    more = (machine.screen, machine.watchdog, machine.boot_from, *(one.name for one in machine.folders))
    return hashlib.sha256(repr((*map(str, facts), *map(str, more))).encode()).hexdigest()


def differing(kept: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was. Pure."""
    return [name for name in now if kept.get(name) != now[name]]


async def save(machine: Machine, watch: Watch, basis: dict[str, str]) -> None:
    """Keep all that a machine is which stands still. A failure leaves nothing kept."""
    await forget(machine)
    place = directory(machine)
    async with Undo() as undo:
        undo.add(forget, machine)
        files.make_dirs(place, 0o700)
        forked = record.channel_path(machine).exists()
        shape = Shape(forked, await disks.places(watch), basis)
        most = (machine.memory_mib << 20) + (machine.memory_mib << 14) + _MARGIN
        await aside.run(file_limits.raise_to, watch.process, most)
        with files.new_file(place / STATE) as file:
            await watch.save(file.fileno(), max(LEAST_S, machine.memory_mib / SLOWEST_MIB_S))
        await aside.run(files.sync, place / STATE)
        await aside.run(files.write_durably, place / SHAPE, msgspec.json.encode(shape))
        undo.commit()


def memory_of(machine: Machine, basis: Mapping[str, str]) -> Memory:
    """What a machine goes on from. Conflict when there is none, or it does not fit any longer."""
    place = directory(machine)
    doing = f"going on from the memory of machine {machine.name}"
    try:
        shape = msgspec.json.decode(files.read_limited(place / SHAPE, _MOST_SHAPE), type=Shape)
    except (OSError, AtollError, msgspec.DecodeError) as error:
        raise Conflict(f"{doing}: it cannot be read: {error}", hint=_hint(machine)) from error
    other = differing(shape.basis, basis)
    if other:
        raise Conflict(
            f"{doing}: it does not fit any longer: {', '.join(other)} changed since it was suspended",
            hint=_hint(machine),
            details={"changed": other},
        )
    return Memory(None, place / STATE, own=True, forked=shape.forked, places=shape.places)


async def forget(machine: Machine) -> None:
    """Keep it no longer. The shape goes first: what is left is of no use then."""
    await aside.run((directory(machine) / SHAPE).unlink, missing_ok=True)
    if directory(machine).exists():
        await aside.run(files.remove_tree, directory(machine))


def _hint(machine: Machine) -> str:
    return (
        f"put back what was changed; or begin anew without it: atoll vm stop --force {machine.name},"
        f" then atoll vm start {machine.name}"
    )
