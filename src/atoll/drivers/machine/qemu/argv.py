"""QEMU command lines. Pure: turns a machine and the numbers of its open files into argv; driver.py runs it.

QEMU gets everything as open files and opens none of a VM's by name, so it needs no right to any directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import NAMESPACE_OID, UUID, uuid5

from msgspec import Struct

from atoll.drivers.machine.base import Machine, Nic, SharedFolder
from atoll.drivers.machine.qemu.block import Places, disk_args
from atoll.model.hardware import BootFrom, Watchdog
from atoll.model.share import tag_of
from atoll.model.vm import MachineType

Accelerator = Literal["kvm", "tcg"]

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

CONSOLE = "console"
HANDS = "hands"
LOG_SET = 1
"""What the serial line and the set of files with its log are called in QEMU."""

LONGEST_CMDLINE = 2047
"""What Linux takes on x86; the rest it leaves out without a word."""

_MIN_TRANSLATED_MIB = 32
_MAX_TRANSLATED_MIB = 128
# QEMU's heap, threads, and copies of kernel and initramfs: 32 MiB when measured, and room for larger ones.
_OWN_MIB = 96


_ENDS_PAUSED = "reboot=reset,shutdown=pause,panic=pause"
_ENDS_AT_ONCE = "reboot=shutdown,shutdown=poweroff,panic=shutdown"


class TemplateFiles(Struct, frozen=True):
    """Those of a machine that becomes a template, or is a fork of one. `channel` listens.

    A fork maps `ram` privately, and reads its `state` when it is told to. What becomes a template has none. One that
    goes on from its own memory has it in its state, and no other.
    """

    ram: int | None
    channel: int
    state: int | None = None


class Files(Struct, frozen=True):
    """The numbers of the open files that a QEMU inherits. `monitor` and `hands` listen."""

    kernel: int
    initrd: int
    taps: tuple[int, ...]
    monitor: int
    log: int
    hands: int
    template: TemplateFiles | None = None
    disks: tuple[int, ...] = ()
    incoming: int | None = None
    """The memory and devices of a machine that goes on from them, and is none of a template."""
    held: bool = False
    """It waits for a word of ours when it has them."""
    places: Places | None = None
    """Where its disks are to be, where that is not up to us."""
    folders: tuple[int, ...] = ()
    """Connections to those who serve its folders."""
    shared_ram: int | None = None
    """A file that is its memory, where others than QEMU have it too."""

    @property
    def state(self) -> int | None:
        """What it goes on from, whosever it was."""
        return self.template.state if self.template is not None else self.incoming

    def numbers(self) -> tuple[int, ...]:
        always = (self.kernel, self.initrd, *self.taps, self.monitor, self.log, self.hands, *self.disks)
        one = self.template
        more = (
            self.incoming,
            self.shared_ram,
            *self.folders,
            *((one.ram, one.channel, one.state) if one is not None else ()),
        )
        return (*always, *(number for number in more if number is not None))


def qemu_argv(
    machine: Machine, files: Files, accelerator: Accelerator, *, binary: str, tsc_khz: int | None = None
) -> tuple[str, ...]:
    """The whole command line. `tsc_khz` is the host's, where known."""
    board = board_of(machine)
    return (
        binary,
        *base_args(files.template),
        *board_args(board, own_memory=files.template is not None or files.shared_ram is not None),
        *cpu_args(machine, accelerator),
        *memory_args(machine, files),
        *boot_args(machine, files, cmdline_of(machine, board, accelerator, tsc_khz)),
        *identity_args(machine, board),
        *channel_args(files),
        *nic_args(machine.nics, board, files.taps, netboot=machine.boot_from in _OF_NETWORK),
        *device_args(board),
        *disk_args(machine, board, files.disks, files.places),
        *hands_args(board, files.hands),
        *display_args(machine),
        *watchdog_args(machine),
        *folder_args(machine.folders, files.folders),
        *template_args(files.template),
        *incoming_args(files),
    )


def board_of(machine: Machine) -> MachineType:
    """The machine type that is meant: q35 boots everything, and has never hung."""
    return MachineType.Q35 if machine.machine_type is MachineType.AUTO else machine.machine_type


def base_args(template: TemplateFiles | None = None) -> list[str]:
    """What every QEMU of ours has: nothing by default, no way out, and an end that waits to be read.

    A guest that powers off or panics leaves a paused QEMU: an agent that was away can still ask it why. One
    that was to become a template and ends is of no use, whatever the reason.
    """
    making = template is not None and template.state is None
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
        _ENDS_AT_ONCE if making else _ENDS_PAUSED,
    ]


def board_args(board: MachineType, *, own_memory: bool = False) -> list[str]:
    """`own_memory`: `memory_args` says what it has for memory."""
    # A guest's memory goes neither into core dumps nor into pages that are shared with other guests.
    private = "dump-guest-core=off,mem-merge=off" + (",memory-backend=ram" if own_memory else "")
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


def memory_args(machine: Machine, files: Files) -> list[str]:
    size = ["-m", f"size={machine.memory_mib}M"]
    template = files.template
    if template is None and files.shared_ram is None:
        return size
    number = files.shared_ram if template is None else template.ram
    if number is None:
        return [*size, "-object", f"memory-backend-ram,id=ram,size={machine.memory_mib}M"]
    share = "on" if template is None or template.state is None else "off"
    path = f"/proc/self/fd/{number}"
    backend = f"memory-backend-file,id=ram,size={machine.memory_mib}M,mem-path={path},share={share}"
    return [*size, "-object", backend]


_BOOT_ORDERS = {
    BootFrom.NETWORK: "order=nc",
    # QEMU goes back to the order after a reset, of whoever's making.
    BootFrom.NETWORK_ONCE: "order=c,once=n",
    BootFrom.DISK: "order=c",
}
_OF_NETWORK = (BootFrom.NETWORK, BootFrom.NETWORK_ONCE)


def boot_args(machine: Machine, files: Files, cmdline: str) -> list[str]:
    if machine.boot_from in _BOOT_ORDERS:
        return ["-boot", _BOOT_ORDERS[machine.boot_from]]
    # Opened anew through our own descriptors: the directories on the way need not be open to this user.
    return [
        "-kernel",
        f"/proc/self/fd/{files.kernel}",
        "-initrd",
        f"/proc/self/fd/{files.initrd}",
        "-append",
        cmdline,
    ]


def template_args(template: TemplateFiles | None) -> list[str]:
    """The channel over which a fork learns who it is, and how its state arrives.

    A fork does not announce itself when it arrives: it does not know yet who it is.
    """
    if template is None:
        return []
    args = [
        "-chardev",
        f"socket,id=channel,fd={template.channel},server=on,wait=off",
        "-device",
        "isa-serial,chardev=channel,index=1",
        "-global",
        "migration.x-events=on",
    ]
    if template.state is None:
        return args
    return [*args, "-global", "migration.announce-rounds=0", "-incoming", "defer"]


def incoming_args(files: Files) -> list[str]:
    """How a machine goes on from its own memory: it gets it from us, and waits then."""
    return [*(["-S"] if files.held else []), *(["-incoming", "defer"] if files.incoming is not None else [])]


def cmdline_of(machine: Machine, board: MachineType, accelerator: Accelerator, tsc_khz: int | None) -> str:
    words = [machine.cmdline, *(folder_word(folder) for folder in machine.folders)]
    if board is not MachineType.MICROVM:
        return " ".join(words).strip()
    # Without the hint, an emulated microvm hangs in TSC calibration in a quarter of its boots.
    if accelerator == "tcg" and tsc_khz is not None:
        words.append(f"tsc_early_khz={tsc_khz}")
    # It has no SMBIOS; cloud-init looks for the same words here.
    if machine.serial.startswith("ds="):
        words.append(machine.serial)
    return " ".join(words).strip()


def identity_args(machine: Machine, board: MachineType) -> list[str]:
    name = ["-name", f"guest={_escaped(machine.name)}"]
    if board is MachineType.MICROVM:  # has no SMBIOS
        return name
    system = (
        f"type=1,manufacturer=Atoll,product=Atoll,"
        f"serial={_escaped(machine.serial or machine.instance_id)},uuid={system_uuid(machine.instance_id)}"
    )
    return [*name, "-smbios", system]


def system_uuid(instance_id: str) -> UUID:
    """The instance id where it is a UUID, else one that follows from it."""
    try:
        return UUID(instance_id)
    except ValueError:
        return uuid5(NAMESPACE_OID, instance_id)


def channel_args(files: Files) -> list[str]:
    """The monitor, on a socket that listens already, and the serial line, which ends in its log: console.py."""
    return [
        "-chardev",
        f"socket,id=monitor,fd={files.monitor},server=on,wait=off",
        "-mon",
        "chardev=monitor,mode=control",
        "-add-fd",
        f"fd={files.log},set={LOG_SET},opaque=console.log",
        "-chardev",
        f"file,id={CONSOLE},path=/dev/fdset/{LOG_SET},append=on",
        "-serial",
        f"chardev:{CONSOLE}",
    ]


def nic_args(
    nics: Sequence[Nic], board: MachineType, taps: Sequence[int], *, netboot: bool = False
) -> list[str]:
    """One after the other, on slots that follow each other: so the guest finds them in this order."""
    args: list[str] = []
    for index, (nic, tap) in enumerate(zip(nics, taps, strict=True)):
        # The ROM boots from the network, from the first one only. Elsewhere it would cost time and memory.
        rom = "" if netboot and index == 0 else ",romfile="
        kind = "virtio-net-device" if board is MachineType.MICROVM else f"virtio-net-pci{rom}"
        device = f"{kind},netdev=net{index},mac={nic.mac},host_mtu={nic.mtu},guest_announce=off"
        args += ["-netdev", f"tap,id=net{index},fd={tap},vhost=off", "-device", device]
    return args


def device_args(board: MachineType) -> list[str]:
    rng = "virtio-rng-device" if board is MachineType.MICROVM else "virtio-rng-pci"
    return ["-object", "rng-builtin,id=rng0", "-device", f"{rng},rng=rng0", "-device", "pvpanic"]


def hands_args(board: MachineType, listener: int) -> list[str]:
    """A port over which the agent in the guest is told what to run: hands.py. Behind all devices that guests count."""
    bus = "virtio-serial-device" if board is MachineType.MICROVM else "virtio-serial-pci"
    return [
        "-chardev",
        f"socket,id={HANDS},fd={listener},server=on,wait=off",
        "-device",
        f"{bus},id={HANDS}-bus,max_ports=2",
        "-device",
        f"virtserialport,id={HANDS},bus={HANDS}-bus.0,chardev={HANDS},name=atoll.hands",
    ]


def folder_args(folders: Sequence[SharedFolder], connections: Sequence[int]) -> list[str]:
    """Folders, each known to the guest by its tag."""
    args: list[str] = []
    for index, (folder, connection) in enumerate(zip(folders, connections, strict=True)):
        args += ["-chardev", f"socket,id=folder{index},fd={connection}"]
        args += ["-device", f"vhost-user-fs-pci,chardev=folder{index},tag={tag_of(folder.name)}"]
    return args


def folder_word(folder: SharedFolder) -> str:
    """What tells the agent in the guest where a folder is to be: images/guest/folders.c."""
    return f"atoll.folder={tag_of(folder.name)}:{folder.target}{':ro' if folder.read_only else ''}"


def display_args(machine: Machine) -> list[str]:
    """A screen with keyboard and pointer. Its server listens nowhere: the monitor hands connections in."""
    if not machine.screen:
        return []
    return [
        "-machine",  # added to the options of the board
        "graphics=on,i8042=on",
        "-device",
        "VGA",
        "-device",
        "qemu-xhci",
        "-device",
        "usb-tablet",  # one that says where it is, not how far it went: viewers do so too
        "-vnc",
        "none",
    ]


def watchdog_args(machine: Machine) -> list[str]:
    """A power-off by it is the end of QEMU without a word of the guest's, which counts as a crash."""
    if machine.watchdog is Watchdog.NONE:
        return []
    return ["-device", str(machine.watchdog), "-action", f"watchdog={machine.watchdog_action}"]


def _escaped(value: str) -> str:
    return value.replace(",", ",,")
