"""Labs for kinds of machine that have the host's kernel. One guest for all: a shell that does as told."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from atoll.drivers.machine.base import Machine, MachineDriver
from atoll.drivers.machine.docker import record as docker_record
from atoll.drivers.machine.docker.config import LABEL
from atoll.drivers.machine.docker.driver import DockerDriver, remove_containers
from atoll.drivers.machine.lxc import record
from atoll.drivers.machine.lxc.config import IDS
from atoll.drivers.machine.lxc.driver import LxcDriver
from atoll.images import cpio, tar
from atoll.system import cgroups, namespaces, processes
from atoll.system.links import Links
from machine_labs import (
    BRIDGE,
    OTHER_BRIDGE,
    PATIENCE_S,
    READY,
    BootFiles,
    Exits,
    Lab,
    bridges_of,
    machine_of,
    read_log,
    until,
)

RANGES = 0x6100_0000
Ask = Callable[[Path, str], bytes]

_INIT = """#!/bin/busybox sh
exec </dev/console >/dev/console 2>&1
/bin/busybox stty -echo
trap 'echo going down; exit 0' TERM PWR
[ -e /kept ] && echo "I kept $(/bin/busybox cat /kept), $(/bin/busybox hostname)"
echo "guest ready"
while :; do
    read -r line || continue
    case $line in
        panic) echo panicking; exit 3 ;;
        off) echo going down; exit 0 ;;
        reboot) echo rebooting; /bin/busybox reboot -f ;;
        deaf) trap '' TERM PWR; echo "deaf now" ;;
        keep) echo good morning >/kept; echo "kept it" ;;
        use) held=$(/bin/busybox head -c 40000000 /dev/zero | /bin/busybox tr '\\000' x); echo "uses ${#held}" ;;
        fill) echo filling; /bin/busybox dd if=/dev/zero of=/full bs=1M; echo "filled: $?" ;;
        unfill) /bin/busybox rm /full; echo "unfilled: $?" ;;
        flood) while :; do echo "a line of many that say nothing, and come without end"; done ;;
        *) echo "heard $line" ;;
    esac
done
"""


class Image(msgspec.Struct, frozen=True):
    archive: Path
    digest: str


def make_image(directory: Path, init: str = _INIT) -> Image:
    busybox = shutil.which("busybox")
    assert busybox is not None
    entries = [
        cpio.regular_file("bin/busybox", Path(busybox).read_bytes(), 0o755),
        cpio.symlink("bin/sh", "busybox"),
        *(cpio.directory(name) for name in ("dev", "proc", "sys", "run", "tmp", "etc")),
    ]
    if init:
        entries.append(cpio.regular_file("sbin/init", init.encode(), 0o755))
    image = Image(directory / f"{secrets.token_hex(4)}.tar", secrets.token_hex(32))
    image.archive.write_bytes(tar.archive(entries))
    return image


class ContainerLab(Lab):
    """What the labs of both kinds have in common."""

    kind = ""

    def __init__(self, directory: Path, image: Image) -> None:
        super().__init__(directory)
        self.image = image
        self.namespace = f"xkind-{secrets.token_hex(3)}"
        self.group = self.namespace
        self.number = secrets.randbelow(31)
        namespaces.ensure(self.namespace)
        with Links(self.namespace) as links:
            links.ensure_bridge(BRIDGE, "02:00:00:00:00:01", 1500, ["10.9.0.1/24"])
            links.ensure_bridge(OTHER_BRIDGE, "02:00:00:00:00:02", 1400, ["10.10.0.1/24"])

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            cgroups.kill_all(self.group)
            cgroups.remove(self.group)
            namespaces.delete(self.namespace)

    def make_machine(self, ip: str, directory: Path) -> Machine:
        group = f"{self.group}/{self.kind}/{ip}"
        cgroups.ensure(group, cgroups.Limits(memory_mib=128, pids=64))
        replace = msgspec.structs.replace
        machine = machine_of(
            ip, directory, BootFiles(Path("/none"), Path("/none")), group, f"xd{ip.rpartition('.')[2]}"
        )
        nic = replace(machine.nic, address=f"{ip}/24", gateway="10.9.0.1")
        # A range as a node would give it; labs of other tests use others.
        uid = RANGES + (self.number * 256 + int(ip.rpartition(".")[2])) % 7_936 * IDS
        image = {"rootfs": self.image.archive, "image_digest": self.image.digest}
        return replace(machine, nic=nic, uid=uid, ids=IDS, root_mib=64, **image)

    def traces(self, machine: Machine) -> set[str]:
        ports = {f"link {name}" for name in self.bridges(machine)}
        running = {f"process {pid}" for pid in processes.processes_in(machine.cgroup)}
        return super().traces(machine) | ports | running

    def macs(self, machine: Machine) -> list[str]:
        with Links(namespaces.of_process(self.init(machine).pid)) as inside:
            found = [inside.find(f"eth{number}") for number in range(9)]
        return [link.mac for link in found if link is not None]

    def bridges(self, machine: Machine) -> dict[str, str]:
        return bridges_of(machine, self.namespace)

    def failing_starts(self, exits: Exits) -> list[tuple[MachineDriver, Machine]]:
        machine = self.machine()
        replace = msgspec.structs.replace
        without_init = make_image(self.directory, init="")
        garbage = self.directory / "garbage.tar"
        garbage.write_bytes(b"not a tar archive, by any means" * 100)
        broken = [
            replace(machine, rootfs=self.directory / "missing", image_digest="1" * 64),
            replace(machine, rootfs=garbage, image_digest="2" * 64),
            replace(machine, rootfs=without_init.archive, image_digest=without_init.digest),
            replace(machine, nic=replace(machine.nic, bridge="xdrvnone")),
            replace(machine, cgroup=f"{self.group}/missing"),
        ]
        driver = self.driver(exits)
        return [(driver, one) for one in broken]

    async def booted(self, machine: Machine) -> None:
        await self.until_boots(machine, 1)

    async def until_boots(self, machine: Machine, count: int) -> None:
        await until(lambda: self._log(machine).count(READY) >= count)

    async def until_logged(self, machine: Machine, text: str) -> None:
        await until(lambda: text.encode() in self._log(machine))

    async def use_memory(self, driver: MachineDriver, machine: Machine) -> None:
        """The guest holds 40 MB for itself from now on."""
        await self.tell(driver, machine, b"use\n")
        await self.until_logged(machine, "uses 40000000")

    async def make_deaf(self, driver: MachineDriver, machine: Machine) -> None:
        await self.tell(driver, machine, b"deaf\n")
        await until(lambda: b"deaf now" in self._log(machine))

    async def power_off_inside(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self.tell(driver, machine, b"off\n")
        if driver is None:
            await self.ended(machine)

    async def panic(self, driver: MachineDriver | None, machine: Machine) -> None:
        await self.tell(driver, machine, b"panic\n")
        if driver is None:
            await self.ended(machine)

    async def end_process(self, driver: MachineDriver | None, machine: Machine) -> None:
        init = self.init(machine)
        processes.send_signal(init, signal.SIGKILL)
        await processes.wait_gone(init, PATIENCE_S)
        if driver is None:
            await self.ended(machine)

    async def tell(self, driver: MachineDriver | None, machine: Machine, line: bytes) -> None:
        """Type a line, as whoever is there, and wait until the guest has reacted."""
        teller = driver or self.make_driver(Exits())
        size = len(self._log(machine))
        console = await teller.console(machine)  # type: ignore[attr-defined]
        await console.write(line)
        await until(lambda: len(self._log(machine)) > size)
        await console.close()
        if driver is None:
            await teller.close()

    def init(self, machine: Machine) -> processes.Pid:
        """Process 1 of the container."""
        raise NotImplementedError

    async def ended(self, machine: Machine) -> None:
        """Wait until all of it has gone, while no agent is there."""
        raise NotImplementedError

    def log(self, machine: Machine) -> str:
        return self._log(machine).decode(errors="replace")

    def _log(self, machine: Machine) -> bytes:
        return read_log(machine.directory / "console.log")


class LxcLab(ContainerLab):
    kind = "lxc"
    kept = frozenset({"file console.log", "file lxc"})

    def make_driver(self, exits: Exits) -> LxcDriver:
        return LxcDriver(exits, self.directory / "roots", namespace=self.namespace)

    def init(self, machine: Machine) -> processes.Pid:
        for pid in processes.processes_in(machine.cgroup):
            if Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].endswith("\t1"):
                found = processes.identify(pid)
                assert found is not None
                return found
        raise AssertionError("there is no init")

    async def ended(self, machine: Machine) -> None:
        known = record.read(machine)
        assert known is not None
        await processes.wait_gone(known.process(), PATIENCE_S)


class DockerLab(ContainerLab):
    """`ask` is a way to look at what the engine holds that is not the driver's own."""

    kind = "docker"
    kept = frozenset({"file console.log", "file docker", "container exited"})

    def __init__(self, directory: Path, image: Image, socket: Path, ask: Ask) -> None:
        super().__init__(directory, image)
        self.socket = socket
        self._ask = ask

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            # Its images too: others count what an engine has.
            await remove_containers(self.socket, self.group)

    def make_driver(self, exits: Exits) -> DockerDriver:
        return DockerDriver(self.socket, exits, namespace=self.namespace)

    def traces(self, machine: Machine) -> set[str]:
        listed = json.loads(self._ask(self.socket, "/containers/json?all=1"))
        found = {f"container {one['State']}" for one in listed if one["Labels"].get(LABEL) == machine.cgroup}
        roots = {f"root {tag}" for tag in self.roots(machine)}
        return super().traces(machine) | found | roots

    def roots(self, machine: Machine) -> list[str]:
        """The images that are this machine's own."""
        listed = json.loads(self._ask(self.socket, "/images/json"))
        own = [one for one in listed if (one["Labels"] or {}).get(LABEL) == machine.cgroup]
        return [one["RepoTags"][0] for one in own]

    def state(self, machine: Machine) -> dict[str, object]:
        kept = docker_record.read(machine)
        assert kept is not None
        answer = self._ask(self.socket, f"/containers/{kept.container}/json")
        state: dict[str, object] = json.loads(answer)["State"]
        return state

    def init(self, machine: Machine) -> processes.Pid:
        found = processes.identify(int(str(self.state(machine)["Pid"])))
        assert found is not None
        return found

    async def ended(self, machine: Machine) -> None:
        await until(lambda: not self.state(machine)["Running"])


class PodmanLab(DockerLab):
    """The same driver, with another engine behind the socket."""
