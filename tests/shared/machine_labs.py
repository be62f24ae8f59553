"""Labs: places where machines of one kind can be run and looked at from outside. One for each kind."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from atoll.drivers.machine.base import Exit, KeepsElsewhere, Machine, MachineDriver, Nic
from atoll.drivers.machine.qemu import record
from atoll.drivers.machine.qemu.console import open_line
from atoll.drivers.machine.qemu.driver import QemuDriver
from atoll.drivers.machine.qemu.monitor import Monitor
from atoll.drivers.machine.sim import SimDriver, SimFaults
from atoll.errors import AtollError
from atoll.images import appliance, cpio, kernel, packages
from atoll.model.vm import MachineType
from atoll.system import cgroups, files, namespaces, processes, sparse
from atoll.system.links import Links

READY = b"guest ready"
PATIENCE_S = 30.0
BRIDGE = "xdrv0"
OTHER_BRIDGE = "xdrv1"
UID = 61_000

_MODULES = ("button", "evdev", "pvpanic_mmio")
_DISK_MODULES = ("virtio_pci", "virtio_blk", "sd_mod", "ata_piix")
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
for name in MODULES; do /bin/busybox insmod /modules/$name.ko; done
exec </dev/console >/dev/console 2>&1
/bin/busybox stty -echo
exec 3</dev/input/event0
(/bin/busybox head -c 1 <&3 >/dev/null && /bin/busybox poweroff -f) &
button=$!
case " $(/bin/busybox cat /proc/cmdline) " in *" atoll.wait "*)
    exec 4<>/dev/ttyS1
    /bin/busybox stty -echo -onlcr <&4
    echo ready >&4
    while read -r order mac name seed clock <&4; do
        case $order in
            park) echo ready >&4 ;;
            *) echo "$order $mac $name"; echo taken >&4 ;;
        esac
        [ "$order" = identity ] && break
    done
esac
echo "guest ready"
while read -r line; do
    case $line in
        panic) echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger ;;
        off) /bin/busybox poweroff -f ;;
        deaf) kill $button; echo "deaf now" ;;
        disks)
            for name in DISK_DRIVERS; do /bin/busybox insmod /modules/$name.ko 2>/dev/null; done
            while read -r major minor blocks name; do echo "disk $name has $blocks KiB"; done </proc/partitions
            echo "these are all" ;;
        write)
            for name in DISK_DRIVERS; do /bin/busybox insmod /modules/$name.ko 2>/dev/null; done
            while [ ! -b /dev/vda ]; do /bin/busybox sleep 0.1; done
            /bin/busybox dd if=/dev/zero of=/dev/vda bs=1M count=24 conv=fsync; echo "wrote: $?" ;;
        flood) while :; do echo "a line of many that say nothing, and come without end"; done ;;
        *) echo "heard $line" ;;
    esac
done
"""


class Exits:
    """What a driver reported, as it comes."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Exit]] = []

    def __call__(self, ip: str, reason: Exit) -> None:
        self.all.append((ip, reason))

    async def first(self) -> tuple[str, Exit]:
        await until(lambda: bool(self.all))
        return self.all[0]


class Lab:
    """What a test may do with any kind of machine."""

    kept = frozenset({"file console.log"})
    """What stays of a machine that was killed, as long as its VM does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._drivers: list[MachineDriver] = []
        self._machines: list[Machine] = []

    def driver(self, exits: Exits) -> MachineDriver:
        """A driver as a fresh agent would make it."""
        driver = self.make_driver(exits)
        self._drivers.append(driver)
        return driver

    def machine(self, last: int = 5) -> Machine:
        directory = self.directory / "vms" / f"10.9.0.{last}"
        files.make_dirs(directory)
        machine = self.make_machine(f"10.9.0.{last}", directory)
        self._machines.append(machine)
        return machine

    def with_another_nic(self, machine: Machine) -> Machine:
        """The same one, with an interface in a second network too."""
        nic = Nic(f"{machine.nic.link}b", OTHER_BRIDGE, "02:00:00:00:01:05", 1400, address="10.10.0.5/24")
        return msgspec.structs.replace(machine, extra_nics=(nic,))

    def macs(self, machine: Machine) -> list[str]:
        """Those of the interfaces that its guest finds, in that order."""
        raise NotImplementedError

    def bridges(self, machine: Machine) -> dict[str, str]:
        """The bridges that its links are in, by link: those of the links that there are."""
        raise NotImplementedError

    async def close(self) -> None:
        if self._machines:
            cleaner = self._drivers[0] if self._drivers else self.make_driver(Exits())
            if isinstance(cleaner, SimDriver):
                cleaner.faults = SimFaults()
            for machine in self._machines:
                await cleaner.kill(machine)
                if isinstance(cleaner, KeepsElsewhere):
                    await cleaner.discard(machine)
        for driver in self._drivers:
            await driver.close()

    def make_driver(self, exits: Exits) -> MachineDriver:
        raise NotImplementedError

    def make_machine(self, ip: str, directory: Path) -> Machine:
        raise NotImplementedError

    def traces(self, machine: Machine) -> set[str]:
        """All that the host holds of a machine."""
        return {f"file {path.name}" for path in machine.directory.iterdir()}

    def failing_starts(self, exits: Exits) -> list[tuple[MachineDriver, Machine]]:
        """Starts that fail, each for another reason."""
        raise NotImplementedError

    async def booted(self, machine: Machine) -> None:
        """Wait until the guest can do what it is told."""

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def until_boots(self, machine: Machine, count: int) -> None:
        """Wait until the guest has come up so many times."""
        raise NotImplementedError

    async def until_told(self, machine: Machine, order: str) -> None:
        """Wait until the guest has been told who it is."""
        told = f"{order} {machine.nic.mac} {machine.name}".encode()
        await until(lambda: told in (machine.directory / "console.log").read_bytes())

    async def make_deaf(self, driver: MachineDriver, machine: Machine) -> None:
        raise NotImplementedError

    async def power_off_inside(self, driver: MachineDriver | None, machine: Machine) -> None:
        """The guest shuts itself down; without a driver, while no agent is there."""
        raise NotImplementedError

    async def panic(self, driver: MachineDriver | None, machine: Machine) -> None:
        raise NotImplementedError

    async def end_process(self, driver: MachineDriver | None, machine: Machine) -> None:
        """What runs the machine dies; without a driver, while no agent is there."""
        raise NotImplementedError


class SimLab(Lab):
    async def sees_disk(self, driver: MachineDriver, machine: Machine, disk: str, size_mib: int) -> None:
        """What is simulated is that it is there, not what it looks like."""
        assert SimDriver(Exits()).disks_of(machine)

    def make_driver(self, exits: Exits) -> SimDriver:
        return SimDriver(exits)

    def make_machine(self, ip: str, directory: Path) -> Machine:
        return machine_of(ip, directory, BootFiles(Path("/none"), Path("/none")), "none", "xsim")

    def macs(self, machine: Machine) -> list[str]:
        return list(SimDriver(Exits()).macs_of(machine))

    def bridges(self, machine: Machine) -> dict[str, str]:
        here = self.macs(machine)
        return {nic.link: nic.bridge for nic in machine.nics if nic.mac in here}

    def failing_starts(self, exits: Exits) -> list[tuple[MachineDriver, Machine]]:
        drivers = [SimDriver(exits, SimFaults(fail=[step])) for step in ("start", "started")]
        self._drivers.extend(drivers)
        return [(driver, self.machine()) for driver in drivers]

    def failing_templates(self, exits: Exits, machine: Machine) -> list[tuple[MachineDriver, Machine]]:
        driver = SimDriver(exits, SimFaults(fail=["make_template"]))
        self._drivers.append(driver)
        return [(driver, machine)]

    def break_template(self, driver: SimDriver, directory: Path) -> None:
        (directory / "sim-template.json").write_bytes(b"{")

    async def until_boots(self, machine: Machine, count: int) -> None:
        assert (machine.directory / "console.log").read_bytes().count(b"simulated guest") == count

    async def make_deaf(self, driver: MachineDriver, machine: Machine) -> None:
        assert isinstance(driver, SimDriver)
        driver.faults.deaf.add(machine.ip)

    async def power_off_inside(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self._player(driver).guest_powers_off(machine)

    async def panic(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self._player(driver).guest_crashes(machine)

    async def end_process(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self._player(driver).guest_crashes(machine)

    def _player(self, driver: MachineDriver | None) -> SimDriver:
        player = SimDriver(Exits()) if driver is None else driver
        assert isinstance(player, SimDriver)
        return player


class BootFiles(msgspec.Struct, frozen=True):
    """What guests are booted with: a stock kernel, and an initramfs of our own."""

    kernel: Path
    initrd: Path


class QemuLab(Lab):
    """Real guests: a stock kernel, and an initramfs whose shell does what it is told over the serial line."""

    def __init__(self, directory: Path, boot: BootFiles, board: MachineType = MachineType.AUTO) -> None:
        super().__init__(directory)
        self.boot = boot
        self.board = board
        self.namespace = f"xdrv-{secrets.token_hex(3)}"
        self.group = self.namespace
        namespaces.ensure(self.namespace)
        with Links(self.namespace) as links:
            links.ensure_bridge(BRIDGE, "02:00:00:00:00:01", 1500)
            links.ensure_bridge(OTHER_BRIDGE, "02:00:00:00:00:02", 1400)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            cgroups.kill_all(self.group)
            cgroups.remove(self.group)
            namespaces.delete(self.namespace)

    def make_driver(self, exits: Exits) -> QemuDriver:
        return QemuDriver("tcg", exits, namespace=self.namespace)

    def make_machine(self, ip: str, directory: Path) -> Machine:
        group = f"{self.group}/qemu/{ip}"
        cgroups.ensure(group, cgroups.Limits(memory_mib=512, pids=64))
        machine = machine_of(ip, directory, self.boot, group, f"xd{ip.rpartition('.')[2]}")
        return msgspec.structs.replace(machine, machine_type=self.board)

    def traces(self, machine: Machine) -> set[str]:
        taps = {f"link {name}" for name in self.bridges(machine)}
        running = {f"process {pid}" for pid in processes.processes_in(machine.cgroup)}
        return super().traces(machine) | taps | running

    def failing_starts(self, exits: Exits) -> list[tuple[MachineDriver, Machine]]:
        machine = self.machine()
        replace = msgspec.structs.replace
        broken = [
            replace(machine, initrd=self.directory / "missing"),
            replace(machine, nic=replace(machine.nic, bridge="xdrvnone")),
            replace(machine, cgroup=f"{self.group}/qemu/missing"),
            replace(machine, memory_mib=1 << 40),  # refused by QEMU itself
        ]
        driver = self.driver(exits)
        return [(driver, one) for one in broken]

    def macs(self, machine: Machine) -> list[str]:
        """As its process was told."""
        words = Path(f"/proc/{self.process(machine).pid}/cmdline").read_text().split("\0")
        cards = [word for word in words if word.startswith("virtio-net-")]
        return [card.partition("mac=")[2].partition(",")[0] for card in cards]

    def bridges(self, machine: Machine) -> dict[str, str]:
        return bridges_of(machine, self.namespace)

    def failing_templates(self, exits: Exits, machine: Machine) -> list[tuple[MachineDriver, Machine]]:
        """QEMU refuses its memory; the guest ends without ever waiting."""
        driver, replace = self.driver(exits), msgspec.structs.replace
        panics = replace(machine, cmdline=f"{machine.cmdline} rdinit=/none panic=-1")
        return [(driver, replace(machine, memory_mib=1 << 40)), (driver, panics)]

    def break_template(self, driver: MachineDriver, directory: Path) -> None:
        state = directory / "state"
        state.write_bytes(state.read_bytes()[:5000])

    async def booted(self, machine: Machine) -> None:
        await self.until_boots(machine, 1)

    async def until_boots(self, machine: Machine, count: int) -> None:
        await until(lambda: self._log(machine).count(READY) >= count)

    async def make_deaf(self, driver: MachineDriver, machine: Machine) -> None:
        await self.tell(driver, machine, b"deaf\n")
        await until(lambda: b"deaf now" in self._log(machine))

    async def power_off_inside(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self.tell(driver, machine, b"off\n")

    async def panic(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self.tell(driver, machine, b"panic\n")

    async def end_process(self, driver: MachineDriver | None, machine: Machine) -> None:
        process = self.process(machine)
        processes.send_signal(process, signal.SIGKILL)
        await processes.wait_gone(process, PATIENCE_S)

    async def sees_disk(self, driver: MachineDriver, machine: Machine, disk: str, size_mib: int) -> None:
        """Wait until the guest has a disk of this kind and size: /dev/vda, /dev/nvme0n1, /dev/sda and so on."""
        found = re.compile(rf"disk {disk}\w* has {size_mib * 1024} KiB".encode())
        async with asyncio.timeout(PATIENCE_S):
            while not found.search(self._log(machine)):
                await self.tell(driver, machine, b"disks\n")
                await asyncio.sleep(0.2)

    def process(self, machine: Machine) -> processes.Pid:
        known = record.read(machine)
        assert known is not None
        return known.process()

    async def tell(self, driver: MachineDriver | None, machine: Machine, line: bytes) -> None:
        if driver is None:
            await self._tell_and_wait_for_its_end(machine, line)
            return
        assert isinstance(driver, QemuDriver)
        console = await driver.console(machine)
        await console.write(line)
        await console.read()
        await console.close()

    async def _tell_and_wait_for_its_end(self, machine: Machine, line: bytes) -> None:
        """Until QEMU knows that its guest has ended. An agent would hold the monitor: only without."""
        heard: list[Exit] = []
        monitor = Monitor("lab", heard.append)
        await monitor.connect(record.monitor_path(machine), PATIENCE_S)
        typing = await open_line(monitor)
        os.write(typing, line)
        await until(lambda: bool(heard))
        os.close(typing)
        await monitor.close()

    async def until_logged(self, machine: Machine, text: str) -> None:
        await until(lambda: text.encode() in self._log(machine))

    def _log(self, machine: Machine) -> bytes:
        return read_log(machine.directory / "console.log")


class AgentLab(QemuLab):
    """The same, with guests that have our agent: those of the appliance. They have no network to speak of."""

    async def booted(self, machine: Machine) -> None:
        """Who talks to the agent waits for it."""

    async def until_boots(self, machine: Machine, count: int) -> None:
        await until(lambda: self._log(machine).count(b"atoll: kernel is up") >= count)


def make_appliance_files(directory: Path) -> BootFiles:
    cache = Path(os.environ.get("ATOLL_CACHE") or "/var/cache/atoll")
    try:
        appliance._make(directory, packages.fetch_kernel(cache, lambda _: None))
    except AtollError as error:
        pytest.skip(f"no appliance to boot guests with: {error.brief}")
    made = BootFiles(directory / "kernel", directory / "initrd")
    for path in (made.kernel, made.initrd):
        path.chmod(0o644)
    return made


def read_log(path: Path) -> bytes:
    """What is kept of a log, which is sparse."""
    with path.open("rb") as file:
        file.seek(sparse.first_kept(file.fileno()))
        return file.read()


def bridges_of(machine: Machine, namespace: str) -> dict[str, str]:
    with Links(namespace) as links:
        names = {found.index: name for name in links.names() if (found := links.find(name)) is not None}
        seen = {nic.link: links.find(nic.link) for nic in machine.nics}
    return {link: names[found.master_index] for link, found in seen.items() if found is not None}


def machine_of(ip: str, directory: Path, boot: BootFiles, cgroup: str, link: str) -> Machine:
    return Machine(
        ip=ip,
        name=f"web-{ip.rpartition('.')[2]}",
        instance_id=str(uuid.uuid5(uuid.NAMESPACE_OID, str(directory))),
        machine_type=MachineType.AUTO,
        memory_mib=96,
        vcpus=1,
        kernel=boot.kernel,
        initrd=boot.initrd,
        cmdline="console=ttyS0 quiet",
        nic=Nic(link=link, bridge=BRIDGE, mac="02:00:00:00:00:05", mtu=1500),
        directory=directory,
        cgroup=cgroup,
        uid=UID,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def make_boot_files(directory: Path) -> BootFiles:
    cache = Path(os.environ.get("ATOLL_CACHE") or "/var/cache/atoll")
    try:
        package = packages.fetch_kernel(cache, lambda _: None)
    except AtollError as error:
        pytest.skip(f"no kernel to boot guests with: {error.brief}")
    made = BootFiles(directory / "kernel", directory / "initrd")
    tree = packages.unpack(package, directory)
    shutil.copyfile(next(tree.glob("boot/vmlinuz-*")), made.kernel)
    made.initrd.write_bytes(initramfs(tree / "lib/modules"))
    shutil.rmtree(tree)
    return made


def initramfs(modules: Path) -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    found = {kernel.module_name(path.name): path for path in modules.rglob("*.ko")}
    first, for_disks = (
        kernel.load_order(wanted, lambda name: found[name].read_bytes())
        for wanted in (_MODULES, _DISK_MODULES)
    )
    script = _INIT.replace("MODULES", " ".join(first)).replace("DISK_DRIVERS", " ".join(for_disks))
    entries = [
        cpio.regular_file("init", script.encode(), 0o755),
        cpio.regular_file("bin/busybox", Path(busybox).read_bytes(), 0o755),
        cpio.directory("dev"),
        cpio.directory("proc"),
        *(cpio.regular_file(f"modules/{name}.ko", data) for name, data in (first | for_disks).items()),
    ]
    return cpio.archive(entries)


@asynccontextmanager
async def opened(lab: Lab) -> AsyncIterator[Lab]:
    """A lab that leaves nothing behind."""
    try:
        yield lab
    finally:
        await lab.close()
