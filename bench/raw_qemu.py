"""The limit of a cold create: the same guest, started by hand, with nobody in between.

    namespace ── tap0: gateway, 169.254.169.254, DHCP ═══ QEMU

No agent, cgroup, sandbox, user, record, monitor, bridge or firewall: one process, whose tap is there already.
Effects: a network namespace, a tap, and QEMU processes, all removed at the end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from msgspec import Struct
from own_cloud import ask, undisturbed

from atoll.drivers.machine.base import Machine, Nic
from atoll.drivers.machine.qemu import argv
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp.server import DhcpServer
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.server import MetadataServer
from atoll.model.lease import LeaseState
from atoll.model.network import METADATA_IP, Subnet, mac_for
from atoll.model.vm import VM
from atoll.system import namespaces

LINK = "tap0"
SUBNET = Subnet(id="raw", cidr="10.99.0.0/24", gateway="10.99.0.1", domain="atoll.internal")
GUEST_IP = "10.99.0.2"
PAUSE_S = 0.002
PATIENCE_S = 60.0


class Boot(Struct, frozen=True):
    """What both sides boot: taken from a VM that our side made."""

    vm: VM
    kernel: Path
    initrd: Path
    cmdline: str
    accelerator: argv.Accelerator


class OnlyGuest:
    """The one guest there is, as DHCP and metadata servers ask for it. Called in the loop of `answering`."""

    def __init__(self, lease: Lease, vm: VM, asked: Callable[[str], None]) -> None:
        self._lease = lease
        self._vm = vm
        self._asked = asked

    def lease(self, mac: str) -> Lease | None:
        return self._lease if mac == self._lease.mac else None

    def leases(self, subnet: str) -> tuple[Lease, ...]:
        return (self._lease,)

    def used(self, mac: str, state: LeaseState) -> None:
        if state is LeaseState.BOUND:
            self._asked("dhcp")

    def guest(self, ip: str) -> Guest | None:
        return Guest(self._vm)

    async def certify_host(self, guest: Guest, key: str) -> str:
        return ""

    def read(self, guest: Guest, path: str) -> None:
        self._asked("metadata")

    async def settle(self, guest: Guest) -> None:
        return


class RawGuest(ABC):
    """A guest that is started by others than us: its clock, and what its questions are answered with."""

    def __init__(self, namespace: str, boot: Boot, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self._boot = boot
        self._began = 0.0
        self._metadata_read = threading.Event()
        self.stages: list[dict[str, float]] = []

    def begin(self) -> None:
        """From now on it is timed."""
        self._metadata_read.clear()
        self.stages.append({})
        self._began = time.monotonic()

    def answer(self, runs: Callable[[], bool]) -> float:
        """Seconds since it began until the guest's answer, as long as it runs."""
        # Its port opens after it has read its metadata; trying earlier would lose packets, and time.
        while not self._metadata_read.wait(0.2):
            self._check(runs)
        while not namespaces.inside(self.namespace, _answers):
            self._check(runs)
            time.sleep(PAUSE_S)
        self._note("port:80")
        namespaces.inside(self.namespace, lambda: ask(GUEST_IP))
        return time.monotonic() - self._began

    def _check(self, runs: Callable[[], bool]) -> None:
        if not runs() or time.monotonic() - self._began > PATIENCE_S:
            raise RuntimeError(f"the raw guest does not answer: {self.last_words()}")

    @abstractmethod
    def last_words(self) -> str:
        """Why it may not answer."""

    def machine(self) -> Machine:
        vm = self._boot.vm
        return Machine(
            ip=GUEST_IP,
            name=vm.name,
            instance_id=vm.instance_id,
            machine_type=vm.machine_type,
            memory_mib=vm.memory_mib,
            vcpus=vm.vcpus,
            kernel=self._boot.kernel,
            initrd=self._boot.initrd,
            cmdline=self._boot.cmdline,
            nic=Nic(LINK, "", mac_for(GUEST_IP), SUBNET.mtu),
            directory=self.directory,
            cgroup="",
            uid=0,
        )

    def only_guest(self) -> OnlyGuest:
        """What its questions are answered with."""
        lease = Lease(GUEST_IP, mac_for(GUEST_IP), self._boot.vm.name, SUBNET)
        return OnlyGuest(lease, self._boot.vm, self._asked)

    def _asked(self, stage: str) -> None:
        self._note(stage)
        if stage == "metadata":
            self._metadata_read.set()

    def _note(self, stage: str) -> None:
        self.stages[-1].setdefault(stage, time.monotonic() - self._began)


class RawQemu(RawGuest):
    """Starts guests one after the other, and times them."""

    def create(self) -> float:
        """Seconds from starting QEMU to the guest's answer."""
        qemu = namespaces.inside(self.namespace, self._start)
        try:
            return self.answer(lambda: qemu.poll() is None)
        finally:
            qemu.kill()
            qemu.wait()

    def last_words(self) -> str:
        return (self.directory / "qemu.log").read_text(errors="replace")[-500:]

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.directory / "qemu.log").open("wb") as log:
            command = self._argv()
            self.begin()
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _argv(self) -> list[str]:
        """Board, CPU, memory, devices and kernel as ours; none of what confines or manages ours."""
        machine = self.machine()
        board = argv.board_of(machine)
        nic = "virtio-net-device" if board == "microvm" else "virtio-net-pci,romfile="
        return [
            "qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none",
            *argv.board_args(board),
            *argv.cpu_args(machine, self._boot.accelerator),
            "-m", f"size={machine.memory_mib}M",
            "-kernel", str(machine.kernel), "-initrd", str(machine.initrd), "-append", machine.cmdline,
            "-serial", f"file:{self.directory / 'console.log'}",
            "-netdev", f"tap,id=net0,ifname={LINK},script=no,downscript=no,vhost=off",
            "-device", f"{nic},netdev=net0,mac={machine.nic.mac},host_mtu={machine.nic.mtu}",
            *argv.device_args(board),
        ]  # fmt: skip


@contextmanager
def raw_qemu(boot: Boot) -> Iterator[RawQemu]:
    """A place for raw guests, with somebody who answers DHCP and metadata."""
    with tap_place("raw") as (name, directory):
        raw = RawQemu(name, boot, directory)
        with answered(raw):
            yield raw


@contextmanager
def tap_place(kind: str) -> Iterator[tuple[str, Path]]:
    """A namespace with a tap, and a directory."""
    name = f"atoll-bench-{kind}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix=f"atoll-bench-{kind}-") as directory, _namespace(name):
        yield name, Path(directory)


@contextmanager
def answered(raw: RawGuest) -> Iterator[None]:
    """With somebody who answers the guest's DHCP and metadata, until the block ends."""
    guest = raw.only_guest()
    with answering(DhcpServer(raw.namespace, LINK, guest), MetadataServer(raw.namespace, guest)):
        yield


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "tuntap", "add", "dev", LINK, "mode", "tap", "vnet_hdr")
        _ip("-n", name, "address", "add", f"{SUBNET.gateway}/24", "dev", LINK)
        _ip("-n", name, "address", "add", f"{METADATA_IP}/32", "dev", LINK)
        _ip("-n", name, "link", "set", LINK, "up")
        # As our agent does: the host need not ask who has the address.
        _ip("-n", name, "neighbour", "add", GUEST_IP, "lladdr", mac_for(GUEST_IP), "dev", LINK)
        yield
    finally:
        with undisturbed():
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def answering(dhcp: DhcpServer, metadata: MetadataServer) -> Iterator[None]:
    """Both servers, in a loop of their own, until the block ends."""
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        await dhcp.start()
        await metadata.start()
        started.set()
        await asyncio.to_thread(stop.wait)
        await dhcp.close()
        await metadata.close()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), name="answering")
    thread.start()
    try:
        if not started.wait(10):
            raise RuntimeError("the raw side's DHCP and metadata servers did not start")
        yield
    finally:
        stop.set()
        thread.join()


def _answers() -> bool:
    try:
        socket.create_connection((GUEST_IP, 80), timeout=1).close()
    except OSError:
        return False
    return True


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
