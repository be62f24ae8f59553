"""QEMU command lines. Pure: turns a machine and the numbers of its open files into argv; driver.py runs it.

QEMU gets everything as open files and opens none of a VM's by name, so it needs no right to any directory.
"""

from __future__ import annotations

from typing import Literal
from uuid import NAMESPACE_OID, UUID, uuid5

from msgspec import Struct

from atoll.drivers.machine.base import Machine, Nic
from atoll.model.vm import MachineType

Accelerator = Literal["kvm", "tcg"]

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

_MIN_TRANSLATED_MIB = 32
_MAX_TRANSLATED_MIB = 128
# QEMU's heap, threads, and copies of kernel and initramfs: 32 MiB when measured, and room for larger ones.
_OWN_MIB = 96


class Files(Struct, frozen=True):
    """The numbers of the open files that a QEMU inherits. `monitor` and `console` listen."""

    kernel: int
    initrd: int
    tap: int
    monitor: int
    console: int
    log: int

    def numbers(self) -> tuple[int, ...]:
        return (self.kernel, self.initrd, self.tap, self.monitor, self.console, self.log)


def qemu_argv(
    machine: Machine, files: Files, accelerator: Accelerator, *, binary: str, tsc_khz: int | None = None
) -> tuple[str, ...]:
    """The whole command line. `tsc_khz` is the host's, where known."""
    board = board_of(machine)
    return (
        binary,
        *base_args(),
        *board_args(board),
        *cpu_args(machine, accelerator),
        *memory_args(machine),
        *boot_args(machine, files, cmdline_of(machine, board, accelerator, tsc_khz)),
        *identity_args(machine, board),
        *channel_args(files),
        *nic_args(machine.nic, board, files.tap),
        *device_args(board),
    )


def board_of(machine: Machine) -> MachineType:
    """The machine type that is meant: q35 boots everything, and has never hung."""
    return MachineType.Q35 if machine.machine_type is MachineType.AUTO else machine.machine_type


def base_args() -> list[str]:
    """What every QEMU of ours has: nothing by default, no way out, and an end that waits to be read.

    A guest that powers off or panics leaves a paused QEMU: an agent that was away can still ask it why.
    """
    return [
        "-no-user-config",
        "-nodefaults",
        "-display",
        "none",
        "-msg",
        "timestamp=on",
        "-sandbox",
        SANDBOX,
        "-action",
        "reboot=reset,shutdown=pause,panic=pause",
    ]


def board_args(board: MachineType) -> list[str]:
    # A guest's memory goes neither into core dumps nor into pages that are shared with other guests.
    private = "dump-guest-core=off,mem-merge=off"
    if board is MachineType.MICROVM:
        # acpi: without it there is no power button. rtc: without it the guest starts in 1970.
        return ["-machine", f"microvm,acpi=on,rtc=on,{private}"]
    # The PIT stays: without it (and HPET) Linux finds no timer and panics.
    unused = "usb=off,vmport=off,smm=off,hpet=off,sata=off,smbus=off,i8042=off,graphics=off"
    return ["-machine", f"q35,{unused},{private}"]


def cpu_args(machine: Machine, accelerator: Accelerator) -> list[str]:
    smp = ["-smp", f"cpus={machine.vcpus}"]
    if accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host", *smp]
    return ["-accel", f"tcg,tb-size={translated_mib(machine.memory_mib)}", "-cpu", "max", *smp]


def translated_mib(memory_mib: int) -> int:
    """Room for translated code. 32 MiB boots as fast as more (16 does not) and saves 12 MiB a guest."""
    return min(max(memory_mib // 4, _MIN_TRANSLATED_MIB), _MAX_TRANSLATED_MIB)


def overhead_mib(accelerator: Accelerator) -> int:
    """The most memory that a QEMU needs beside its guest's."""
    return _OWN_MIB if accelerator == "kvm" else _OWN_MIB + _MAX_TRANSLATED_MIB


def memory_args(machine: Machine) -> list[str]:
    return ["-m", f"size={machine.memory_mib}M"]


def boot_args(machine: Machine, files: Files, cmdline: str) -> list[str]:
    # Opened anew through our own descriptors: the directories on the way need not be open to this user.
    return [
        "-kernel",
        f"/proc/self/fd/{files.kernel}",
        "-initrd",
        f"/proc/self/fd/{files.initrd}",
        "-append",
        cmdline,
    ]


def cmdline_of(machine: Machine, board: MachineType, accelerator: Accelerator, tsc_khz: int | None) -> str:
    # Without the hint, an emulated microvm hangs in TSC calibration in a quarter of its boots.
    if board is MachineType.MICROVM and accelerator == "tcg" and tsc_khz is not None:
        return f"{machine.cmdline} tsc_early_khz={tsc_khz}".strip()
    return machine.cmdline


def identity_args(machine: Machine, board: MachineType) -> list[str]:
    name = ["-name", f"guest={_escaped(machine.name)}"]
    if board is MachineType.MICROVM:  # has no SMBIOS
        return name
    system = (
        f"type=1,manufacturer=Atoll,product=Atoll,"
        f"serial={_escaped(machine.instance_id)},uuid={system_uuid(machine.instance_id)}"
    )
    return [*name, "-smbios", system]


def system_uuid(instance_id: str) -> UUID:
    """The instance id where it is a UUID, else one that follows from it."""
    try:
        return UUID(instance_id)
    except ValueError:
        return uuid5(NAMESPACE_OID, instance_id)


def channel_args(files: Files) -> list[str]:
    """The monitor, and the serial line with its log, on sockets that listen already."""
    return [
        "-chardev",
        f"socket,id=monitor,fd={files.monitor},server=on,wait=off",
        "-mon",
        "chardev=monitor,mode=control",
        "-add-fd",
        f"fd={files.log},set=1,opaque=console.log",
        "-chardev",
        f"socket,id=console,fd={files.console},server=on,wait=off,logfile=/dev/fdset/1,logappend=on",
        "-serial",
        "chardev:console",
    ]


def nic_args(nic: Nic, board: MachineType, tap: int) -> list[str]:
    # romfile=: nothing boots from the network here, and the ROM would cost time and memory.
    kind = "virtio-net-device" if board is MachineType.MICROVM else "virtio-net-pci,romfile="
    return [
        "-netdev",
        f"tap,id=net0,fd={tap},vhost=off",
        "-device",
        f"{kind},netdev=net0,mac={nic.mac},host_mtu={nic.mtu}",
    ]


def device_args(board: MachineType) -> list[str]:
    rng = "virtio-rng-device" if board is MachineType.MICROVM else "virtio-rng-pci"
    return ["-object", "rng-builtin,id=rng0", "-device", f"{rng},rng=rng0", "-device", "pvpanic"]


def _escaped(value: str) -> str:
    return value.replace(",", ",,")
