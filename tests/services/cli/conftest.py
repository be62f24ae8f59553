"""A Hypervisor's wire with nothing behind it but a dictionary, and the command line against it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ABANDON, VM_ACKNOWLEDGE, VM_CHANGE, ChangeVm
from atoll.api.given import NODE_REMOVE_SUBNET
from atoll.api.observing import UTILISATION
from atoll.api.route import (
    ByteSocket,
    Call,
    Done,
    Part,
    bind,
    bind_download,
    bind_part,
    bind_socket,
    bind_stream,
)
from atoll.api.server import Ended, application
from atoll.cli.main import main
from atoll.errors import Conflict, Denied, HostFailure, NotFound, TimedOut
from atoll.identity.authority import Authority
from atoll.model.event import Event, EventKind
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Subnet, mac_for
from atoll.model.node import Capacity, DriverInfo, Node, Pool
from atoll.model.utilisation import Usage, Utilisation, VmUsage
from atoll.model.vm import VM, ConsoleKind, VmState

CREATED_AT = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@dataclass
class Node0:
    """What the service holds; tests look into it, and tell it how to behave."""

    vms: dict[str, VM] = field(default_factory=dict)
    created: list[api.CreateVm] = field(default_factory=list)
    stopped: list[tuple[str, float]] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)
    log_gone: dict[str, int] = field(default_factory=dict)
    user_data: dict[str, bytes] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
    protected: set[str] = field(default_factory=set)
    acknowledged: list[str] = field(default_factory=list)
    changed: list[ChangeVm] = field(default_factory=list)
    attached: list[api.Attach] = field(default_factory=list)
    writer: str = ""
    """Who has the keyboard of every console."""
    history: bytes = b"booting\r\n"
    hold_after: str = ""
    """Let a create wait for ever after this stage."""
    held_now: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    hold_before: bool = False
    """Let a create wait for ever before its first stage."""
    holds_abandon: bool = False
    fails_abandon: bool = False
    mute_after: str = ""
    """Break off a create after this stage, without a result."""

    lets_go: bool = False
    """What is held goes on."""

    async def held(self) -> None:
        while not self.lets_go:
            await asyncio.sleep(0.02)

    def find(self, ref: str) -> VM:
        for vm in self.vms.values():
            if ref in (vm.ip, vm.name):
                return vm
        raise NotFound(f"no VM {ref}", hint="see: atoll vm list")

    def change(self, ref: str, state: VmState) -> VM:
        vm = msgspec.structs.replace(self.find(ref), state=state)
        if vm.name in self.protected:
            raise Denied(f"VM {vm.name} is not yours")
        self.vms[vm.ip] = vm
        return vm

    def make(self, name: str, **fields: object) -> VM:
        ip = f"10.213.0.{len(self.vms) + 5}"
        known = {
            "ip": ip, "mac": mac_for(ip), "name": name, "state": VmState.RUNNING, "driver": "qemu",
            "image": "appliance", "image_digest": "sha256:ab", "memory_mib": 128, "milli_cpus": 250,
            "vcpus": 1, "machine_type": "auto", "subnet": "default", "owner_users": ("admin",),
            "owner_groups": (), "tags": {}, "created_at": CREATED_AT, "instance_id": f"i-{name}",
            "ready": {"started": 0.12, "dhcp": 0.4},
        }  # fmt: skip
        vm = msgspec.convert(known | fields, VM)
        self.vms[vm.ip] = vm
        return vm

    async def create(self, call: Call[api.CreateVm, None]) -> AsyncIterator[api.Progress | Done[VM]]:
        spec = call.body.spec
        self.created.append(call.body)
        if self.hold_before:
            await self.held()
        if any(vm.name == spec.name for vm in self.vms.values()):
            raise Conflict(f"creating VM {spec.name}: the name is in use", hint="choose another one")
        for stage, elapsed_s in (("address", 0.01), ("started", 0.12)):
            yield api.Progress(stage, elapsed_s, "10.213.0.5")
            if stage == self.mute_after:
                return
            if stage == self.hold_after:
                self.held_now.append(spec.name)
                await self.held()
        if call.body.wait.wait_for == "port:9":
            raise TimedOut(f"waiting for VM {spec.name}: port 9 is closed", hint="atoll vm log tells more")
        fields = msgspec.to_builtins(spec)
        subnet = fields.pop("subnet") or "default"
        # Where the create does not say, the image does.
        fields["imdsv2_required"] = bool(spec.imdsv2_required)
        yield Done(self.make(fields.pop("name"), subnet=subnet, **fields))

    async def start(self, call: Call[api.Wait, None]) -> AsyncIterator[api.Progress | Done[VM]]:
        vm = self.change(call.params["vm"], VmState.RUNNING)
        yield api.Progress("started", 0.1, vm.ip)
        yield Done(vm)

    async def stop(self, call: Call[api.StopVm, None]) -> VM:
        self.stopped.append((call.params["vm"], call.body.grace_s))
        return self.change(call.params["vm"], VmState.STOPPED)

    async def destroy(self, call: Call[None, None]) -> None:
        vm = self.change(call.params["vm"], VmState.DESTROYING)
        del self.vms[vm.ip]

    async def acknowledge(self, call: Call[None, None]) -> VM:
        self.acknowledged.append(call.params["vm"])
        return self.find(call.params["vm"])

    async def abandon(self, call: Call[None, None]) -> None:
        self.abandoned.append(call.params["vm"])
        if self.fails_abandon:
            raise HostFailure("the disk is full")
        if self.holds_abandon:
            await self.held()

    async def change_vm(self, call: Call[ChangeVm, None]) -> VM:
        self.changed.append(call.body)
        return self.find(call.params["vm"])

    async def log(self, call: Call[None, api.LogFrom]) -> Part:
        name = self.find(call.params["vm"]).name
        gone, kept = self.log_gone.get(name, 0), self.logs[name]
        offset = max(gone, min(call.query.offset or 0, gone + len(kept)))

        async def chunks() -> AsyncIterator[bytes]:
            for byte in range(offset - gone, len(kept), 3):
                yield kept[byte : byte + 3]

        return Part(offset, chunks())

    async def give_user_data(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        yield self.user_data[self.find(call.params["vm"]).name]

    async def console(self, call: Call[None, api.Attach]) -> Callable[[ByteSocket], Awaitable[None]]:
        self.find(call.params["vm"])
        self.attached.append(call.query)
        writes = not call.query.watch and (call.query.take or not self.writer)

        async def talk(socket: ByteSocket) -> None:
            if call.query.history:
                await socket.send(self.history)
            await socket.tell(api.Writer(writes, "admin" if writes else self.writer))
            await socket.send(b"login: ")
            while data := await socket.receive():
                match data:
                    case b"crash\n":
                        return
                    case b"bye\n":
                        await socket.send(b"<bye\n>")
                        return
                    case b"lose\n":
                        await socket.tell(api.Writer(False, "eve"))
                    case _:
                        await socket.send(b"<" + data + b">")

        return talk

    async def vnc(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        if self.find(call.params["vm"]).console is not ConsoleKind.VNC:
            raise Conflict("the VM has no screen")

        async def talk(socket: ByteSocket) -> None:
            await socket.send(b"RFB 003.008\n")
            while data := await socket.receive():
                await socket.send(b"<" + data + b">")

        return talk

    async def events(self, call: Call[None, api.Since]) -> AsyncIterator[Event | Done[None]]:
        vms = tuple(self.vms.values())
        yield Event(EventKind.STATE, "e1", 0, CREATED_AT, vms=vms)
        if call.query.follow:
            yield Event(EventKind.CHANGED, "e1", 1, CREATED_AT, vm=vms[0])
        yield Done(None)

    def node(self) -> Node:
        capacity = Capacity(2000, 4096, 20480)
        return Node(
            ip="10.213.0.1", name="n1", version="0.1.0", boot_id="b", total=capacity, free=capacity,
            drivers=(DriverInfo("qemu", ("console",), accelerator="tcg", confinement={"user": "vm"}),),
            pools=tuple(self.pools), vms={"running": len(self.vms)},
        )  # fmt: skip

    async def add_subnet(self, call: Call[Subnet, None]) -> Node:
        if all(pool.subnet != call.body for pool in self.pools):
            self.pools.append(Pool(call.body, (), 0))
        return self.node()

    async def remove_subnet(self, call: Call[None, None]) -> None:
        self.pools = [pool for pool in self.pools if pool.subnet.id != call.params["subnet"]]

    async def add_address(self, call: Call[api.AddAddress, None]) -> Node:
        for index, pool in enumerate(self.pools):
            if pool.subnet.id == call.body.subnet:
                for address in call.body.addresses:
                    pool.subnet.check_holds(address)
                self.pools[index] = msgspec.structs.replace(pool, free=pool.free + call.body.addresses)
        return self.node()

    def application(self) -> web.Application:
        async def vms(call: Call[None, api.VmFilter]) -> tuple[VM, ...]:
            return tuple(self.vms.values())

        async def show(call: Call[None, None]) -> VM:
            return self.find(call.params["vm"])

        async def node(call: Call[None, None]) -> Node:
            return self.node()

        async def images(call: Call[None, None]) -> tuple[Image, ...]:
            return (Image("appliance", ("qemu",), DirectBoot("vmlinuz", "initrd"), "sha256:ab", "tiny"),)

        async def utilisation(call: Call[None, None]) -> Utilisation:
            usage = Usage(1.0, 64)
            used = tuple(VmUsage(vm.ip, vm.name, str(vm.state), usage) for vm in self.vms.values())
            return Utilisation(datetime.now(UTC), 2, 4096, usage, used)

        routes = [
            bind(UTILISATION, utilisation),
            bind(api.VM_LIST, vms), bind(api.VM_SHOW, show), bind_stream(api.VM_CREATE, self.create),
            bind_stream(api.VM_START, self.start), bind_stream(api.VM_REBOOT, self.start),
            bind(api.VM_STOP, self.stop), bind(api.VM_DESTROY, self.destroy),
            bind(VM_ACKNOWLEDGE, self.acknowledge), bind(VM_ABANDON, self.abandon), bind(VM_CHANGE, self.change_vm),
            bind_part(api.VM_LOG, self.log), bind_download(api.VM_USER_DATA, self.give_user_data),
            bind_socket(api.VM_CONSOLE, self.console), bind_socket(api.VM_VNC, self.vnc),
            bind_stream(api.EVENTS, self.events),
            bind(api.NODE_SHOW, node), bind(api.NODE_ADD_SUBNET, self.add_subnet),
            bind(api.NODE_ADD_ADDRESS, self.add_address), bind(api.IMAGE_LIST, images),
            bind(NODE_REMOVE_SUBNET, self.remove_subnet),
        ]  # fmt: skip
        return application(routes, _AdmitAll())


class _AdmitAll:
    async def admit(self, route: object, certificate: bytes | None) -> Identity:
        assert certificate, "the command line shows its certificate"
        return Identity("admin")

    @contextmanager
    def open(self, *_: object) -> Iterator[Ended]:
        yield asyncio.get_running_loop().create_future()


class _Server:
    """Runs an application in a thread of its own."""

    def __init__(self, app: web.Application, tls: ssl.SSLContext) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(app, tls))

    def __enter__(self) -> _Server:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, app: web.Application, tls: ssl.SSLContext) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


@dataclass
class Cloud:
    """A directory as `atoll up` leaves it, and the node behind it."""

    directory: Path
    node: Node0

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        cache = str(self.directory.parent / "cache")
        return kept | {"ATOLL_DIR": str(self.directory), "TERM": "xterm", "XDG_CACHE_HOME": cache}

    def start(self, *argv: str, **settings: object) -> subprocess.Popen[bytes]:
        """The real command, as a process."""
        command = [sys.executable, "-m", "atoll.cli", *argv]
        return subprocess.Popen(command, env=self.environment, **settings)  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server's certificate and a user's."""
    directory = tmp_path_factory.mktemp("pki")
    authority = Authority.create(directory / "ca", "Test CA")
    for name, issued in (
        ("server", authority.issue_server(["127.0.0.1"])),
        ("user", authority.issue_user("admin")),
    ):
        (directory / f"{name}.pem").write_bytes(issued.cert_pem)
        (directory / f"{name}.key").write_bytes(issued.key_pem)
    (directory / "ca.pem").write_bytes(authority.cert_pem)
    return directory


@pytest.fixture
def cloud(pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for variable in ("NODE", "CERT", "KEY", "CA", "DEBUG"):
        monkeypatch.delenv(f"ATOLL_{variable}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "server.pem", pki / "server.key")
    tls.load_verify_locations(pki / "ca.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    node = Node0()
    with _Server(node.application(), tls) as server:
        client = tmp_path / "cloud" / "client"
        client.mkdir(parents=True)
        for name in ("ca.pem", "user.pem", "user.key"):
            (client / name).write_bytes((pki / name).read_bytes())
        (client / "context.json").write_text(json.dumps({"addresses": [f"127.0.0.1:{server.port}"]}))
        yield Cloud(tmp_path / "cloud", node)


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


@pytest.fixture
def atoll(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command line in this process."""

    def run(*argv: str) -> Outcome:
        status = main(["--dir", str(cloud.directory), *argv])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run
