"""A Hypervisor on simulated machines and a simulated network, in this process, on the real wire with mTLS."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.api.codec import error_of
from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.api.reaching import current
from atoll.api.route import Done
from atoll.api.server import application
from atoll.drivers.machine.sim import SimDriver, SimFaults
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.credentials import Credentials
from atoll.hypervisor.http.handlers import Backstage, Handlers
from atoll.hypervisor.launch.folders import Folders
from atoll.hypervisor.launch.holds import ImageHolds, images_of
from atoll.hypervisor.launch.hotpool import Pooling
from atoll.hypervisor.launch.ids import NodeIds
from atoll.hypervisor.launch.kinds import Kinds
from atoll.hypervisor.launch.machines import MachinePlace, Machines
from atoll.hypervisor.launch.supplies import Supplies
from atoll.hypervisor.launch.templates import TemplateLimits, Templates
from atoll.hypervisor.network.callers import BridgeCallers, Callers, Census
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.network.sim import SimNetwork
from atoll.hypervisor.publishing.base import Place as Publishing
from atoll.hypervisor.publishing.sim import SimRelay
from atoll.hypervisor.service import Hypervisor, Options
from atoll.hypervisor.signals import Signals
from atoll.hypervisor.ssh import SshCertificates
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.ids import settle
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.hypervisor.vms.recovery import recover, relaunch_all
from atoll.hypervisor.vms.room import NodeFacts
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores
from atoll.identity.access import Operators
from atoll.identity.enrolment import Enrolment
from atoll.identity.issuers import RoleIssuer
from atoll.identity.roles import RoleCallers
from atoll.identity.ssh_issuer import SshIssuer
from atoll.images.store import ImageStore
from atoll.model.image import Ability, DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.publishing import Publication
from atoll.model.vm import VM, VmSpec
from atoll.plan.policies import Backoff
from atoll.plan.publishing import Rules
from atoll.plan.shares import ShareRules
from atoll.serving.audit import AuditLog
from atoll.serving.event_log import EventLog
from atoll.serving.gate import CertificateGate
from atoll.serving.health import Health
from atoll.serving.supervisor import Supervisor
from atoll.serving.user_limits import UserLimits
from atoll.system import clock
from atoll.system.ids import Register
from atoll.system.owners import owner_of
from atoll.system.spares import Spares
from atoll.system.writer import Writer

LAN = Subnet("lan", "10.9.0.0/24", "10.9.0.1")
ADDRESSES = tuple(Address(f"10.9.0.{last}", mac_for(f"10.9.0.{last}")) for last in range(5, 9))
TOTAL = Capacity(milli_cpus=2000, memory_mib=1024, disk_mib=1024)


class Node:
    """One node. `start` again is what a new agent on the same state directory does."""

    def __init__(self, directory: Path, pki: Any) -> None:
        self.directory = directory
        self.pki = pki
        self.images = ImageStore(directory / "images")
        self.faults = SimFaults()
        self.boot_id = "boot-1"
        self.backoff = Backoff(first_s=0.01, longest_s=0.04, limit=3)
        self.acknowledge_within_s = 1.0
        self.hot_pool = 0
        self.most_templates = 8
        self.role_callers = RoleCallers()
        self.share_rules = ShareRules(below=("/srv", str(directory)), own=(str(directory / "state"),))
        self.issuer: RoleIssuer | None = None
        self.credentials: Credentials | None = None
        self.ssh_issuer: SshIssuer | None = None
        self.now = clock.now
        """What those who keep credentials take the time to be."""
        self.gate_now = clock.now
        """What those who check certificates take the time to be."""
        self.user_limits = UserLimits(calls_per_s=100_000)
        self.port = 0
        self.writer = Writer()
        self.relay = SimRelay()
        """It outlives agents."""
        self.publish_rules = Rules()
        self.listen: Callable[[Publication], socket.socket] = lambda _: socket.socket()
        """How a port of the node is opened."""
        self.left_plugged: set[str] = set()
        """What an earlier agent left in the network."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        self.background = Supervisor()
        signals = self.signals = Signals()
        await self.writer.close()
        spares = Spares(self.directory / "state" / "spares")
        self.writer = Writer(spares)
        self.records = Records(self.directory / "state", self.writer)
        self.records.prepare()
        await self.writer.run(spares.fill)
        self.driver = SimDriver(signals.exit, self.faults, signals.stall)
        owner, kinds = owner_of(self.directory / "state"), await Kinds.of({"sim": self.driver})
        self.ids = NodeIds(Register(self.directory / "ids", owner), kinds.id_spaces())
        self.holds = ImageHolds(self.images, owner)
        supplies = Supplies(kinds, self.images, self.holds, self.ids)
        loaded = await settle(self.ids, kinds, self.records, self.records.load())
        self.holds.prepare(
            images_of(record.vm for record in loaded.values()), complete=not self.records.unreadable
        )
        places = {name: self.directory / "stores" / name for name in ("fast", "slow")}
        self.stores = Stores(places, owner)
        self.stores.prepare(loaded, self.records.unreadable, self.records.carried)
        self.audit = AuditLog(self.directory / "state" / "audit.jsonl", self.writer)
        self.network = SimNetwork(signals.reached)
        self.network.plugged |= self.left_plugged
        vms = Inventory("node1", self.records, loaded)
        holdings = Holdings("node1", self.records, self.network, vms)
        self.templates = Templates(
            self.directory / "state" / "templates",
            TemplateLimits(most=self.most_templates, memory_reserve_mib=0, disk_reserve_mib=0),
            supplies,
            "atoll/services-test",
            signals.template,
        )
        place = MachinePlace(
            "atoll/services-test",
            self.records.directory,
            holdings.subnet_of,
            self.stores.path,
            self.stores.check_usable,
            Folders(self.share_rules, lambda: holdings.given.shares),
        )
        self.machines = Machines(supplies, self.network, place, self.templates)
        if self.issuer is not None:
            self.credentials = Credentials(
                self.issuer,
                None,
                vms.list,
                lambda: self.now(),
                own=self.records.credentials,
                tell=lambda vm, problem, cloud: vms.update(vm, role_problem=problem, role_cloud=cloud),
            )
        facts = NodeFacts(
            name="node1",
            ip="10.9.0.2",
            boot_id=self.boot_id,
            there=TOTAL,
            operators=Operators(users=("oper",)),
            drivers=(await self.driver.describe(),),
            cores=2,
            role_callers=self.role_callers,
            has_roles=self.credentials is not None,
            takes_credentials=self.credentials is not None and self.credentials.takes_own,
            backoff=self.backoff,
            acknowledge_within_s=self.acknowledge_within_s,
        )
        bench = Workbench(
            facts,
            self.records,
            vms,
            holdings,
            self.machines,
            self.network,
            self.images,
            self.stores,
            self.background,
        )
        pooling = Pooling(self.templates, self.hot_pool, 0)
        self.ssh = SshCertificates(self.ssh_issuer, vms.list)
        publishing = Publishing(self.relay, lambda one: self.listen(one), self.publish_rules, 6976)
        self.event_log = EventLog(
            self.directory / "state" / "events.jsonl", self.writer, clock.now, vms.list()
        )
        vms.changed.listen(self.event_log.note)
        self.background.keep("writing the history of events", self.event_log.keep)
        self.service = Hypervisor(
            bench, signals, Options(self.stores, publishing, self.ssh, pooling, self.audit)
        )
        await self.ssh.prepare()
        self._callers = Callers(self.records.user_data, self.credentials, ssh=self.ssh)
        self._callers.count(
            Census(lambda: holdings.given, holdings.leases, self.service.find_port, vms.list, signals.reached)
        )
        await self.network.serve(holdings.subnets)
        await recover(self.service, bench, "atoll/services-test")
        self.background.finish("emptying the trash", self.records.empty_trash)
        self.background.finish(
            "starting VMs after a reboot of the host", lambda: relaunch_all(self.service.life, bench)
        )
        await self.templates.prepare()
        self.background.keep("claiming user ids", self.ids.tend)
        self.background.keep("making templates", self.templates.tend)
        if self.hot_pool:
            self.background.keep("filling the hot pool", self.service.pool.tend)
        if self.credentials is not None:
            self.background.keep("renewing the credentials of VMs", self.credentials.keep)
        meter = Meter(vms.list, self.machines.group, self.stores.used_mib)
        logs = BootLogs(self.records.directory)
        backstage = Backstage(
            self.records,
            self.images,
            logs,
            meter,
            self.audit,
            self.event_log,
            Health(self.background, self.pki.certificate()).families,
            Enrolment(self.pki.authority.cert_pem, self.pki.authority.directory),
        )
        handlers = Handlers(self.service, backstage)
        self.revocations = self.pki.revocations()
        self.gate = CertificateGate(
            self.pki.peers(self.revocations),
            bench.operators,
            handlers.auditor.denied,
            lambda: self.gate_now(),
            self.user_limits,
            api.LAUNCHES,
        )
        self.background.keep("ending calls that may not go on", self.gate.calls.keep)
        self._runner = web.AppRunner(
            application(handlers.bound(), self.gate), access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self.pki.server(), reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]
        while "emptying the trash" in self.background.running:
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """The agent goes; machines stay."""
        if self.credentials is not None:
            self.credentials.close()
        if self._runner is not None:
            # As when it is killed: nobody says goodbye.
            self.cut()
            await self._runner.cleanup()
            self._runner = None
        await self.service.close()
        await self.audit.settle()
        await self.driver.close()

    def cut(self) -> None:
        """All clients lose their connections."""
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()

    async def restart(self, *, reboot: bool = False) -> None:
        await self.stop()
        if reboot:
            self.reboot_host()
        await self.start()

    def reboot_host(self) -> None:
        """While there is no agent: no machine survives it."""
        self.boot_id = f"{self.boot_id}+"
        self.left_plugged = set()
        for record in (self.directory / "state" / "vms").glob("*/sim/record.json"):
            record.unlink()

    @asynccontextmanager
    async def starts_held(self) -> AsyncIterator[Callable[[], None]]:
        """Machines of agents that start in this block are not launched before the block ends, or it is called."""
        go_on = asyncio.Event()
        launch = Machines.launch

        async def held(machines: Machines, vm: VM, *, pooled: bool = False) -> Any:
            await go_on.wait()
            return await launch(machines, vm, pooled=pooled)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Machines, "launch", held)
            try:
                yield go_on.set
            finally:
                go_on.set()

    async def furnish(self) -> None:
        """A subnet with addresses, as an operator would add them."""
        async with self.user("oper") as oper:
            await oper.call(api.NODE_ADD_SUBNET, body=LAN)
            await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("lan", ADDRESSES))

    def replace(self, name: str, content: bytes = b"newer") -> Image:
        """What `atoll up` does with a newer appliance: another image by the same name."""
        last = self.images.get(name)
        (self.directory / "newer").write_bytes(content)
        files = {"kernel": self.directory / "newer", "initrd": self.directory / "initrd"}
        return ImageStore(self.images.root).add(
            name,
            kinds=last.kinds,
            boot=last.boot,
            files=files,
            min_memory_mib=last.min_memory_mib,
            ready=last.ready,
            forkable=last.forkable,
        )

    def user(self, name: str = "ann", **claims: Any) -> User:
        return User(self, self.pki.user(name, **claims))

    def add_images(self) -> None:
        """One for cold starts alone, one that can be forked, one that says what it honours, one of another kind."""
        names = {name: self.directory / name for name in ("kernel", "initrd")}
        for path in names.values():
            path.write_bytes(b"\0")
        boot = DirectBoot("kernel", "initrd")
        common = {"boot": boot, "files": names, "min_memory_mib": 32, "ready": "metadata"}
        self.images.add("tiny", kinds=("sim",), agent=True, **common)
        self.images.add("twin", kinds=("sim",), forkable=True, **common)
        self.images.add("plain", kinds=("sim",), honours=(Ability.SCRIPT,), **common)
        self.images.add("heavy", kinds=("qemu",), boot=boot, files=names)

    def free(self) -> set[str]:
        return {address.ip for pool in self.service.node().pools for address in pool.free}

    def traces(self) -> set[str]:
        """All that the host holds of VMs, by what it is."""
        state = self.directory / "state"
        files = {
            str(path.relative_to(state)) for kind in ("vms", "trash") for path in (state / kind).rglob("*")
        }
        volumes = {str(path.relative_to(self.directory)) for path in self.directory.glob("stores/*/[!.]*")}
        return files | volumes | {f"plugged {link}" for link in self.network.plugged}

    def on(self, bridge: str = "br-lan") -> BridgeCallers:
        """Whom the servers of a bridge would answer."""
        return self._callers.on(bridge)

    def machine(self, vm: VM) -> Any:
        """What the driver knows of a VM, for those who play its guest."""
        return self.machines.machine(vm)


class User(AsyncClient):
    """Somebody with a certificate, and what they usually ask for."""

    def __init__(self, node: Node, context: ssl.SSLContext) -> None:
        super().__init__([("127.0.0.1", node.port)], context, timeout_s=20)

    async def create(
        self, name: str = "web", *, wait_for: str | None = None, request_id: str | None = None, **spec: Any
    ) -> VM:
        user_data = spec.pop("user_data", b"")
        timeout_s = spec.pop("timeout_s", 10)
        role_credential = spec.pop("role_credential", None)
        wanted = VmSpec(**{"name": name, "image": "tiny", "driver": "sim", "memory_mib": 64, **spec})
        request = CreateVm(
            wanted, user_data, Wait(wait_for, timeout_s), request_id, role_credential=role_credential
        )
        return await result(self.stream(api.VM_CREATE, body=request))

    async def list(self) -> tuple[VM, ...]:
        return await self.call(api.VM_LIST)

    async def show(self, vm: str) -> VM:
        return await self.call(api.VM_SHOW, {"vm": vm})

    async def begin(self, vm: str, wait_for: str | None = None, timeout_s: float = 10) -> VM:
        return await result(self.stream(api.VM_START, {"vm": vm}, body=Wait(wait_for, timeout_s)))

    async def halt(self, vm: str, grace_s: float = 5) -> VM:
        return await self.call(api.VM_STOP, {"vm": vm}, body=StopVm(grace_s))

    async def reboot(self, vm: str, wait_for: str | None = None) -> VM:
        return await result(self.stream(api.VM_REBOOT, {"vm": vm}, body=Wait(wait_for, 10)))

    async def destroy(self, vm: str) -> None:
        await self.call(api.VM_DESTROY, {"vm": vm})

    async def node(self) -> Any:
        return await self.call(api.NODE_SHOW)

    async def stream_raw(self, route: Any, body: bytes, query: str = "") -> None:
        """A body or a query that our clients would not send."""
        host, port = self.address
        url = f"https://{host}:{port}{route.path}{query}"
        data = io.BytesIO(body) if body else None
        headers = {"Content-Type": "application/json"}
        session, tls = self._open_session(), current(self._tls)
        async with session.request(route.verb, url, data=data, headers=headers, ssl=tls) as response:
            raise error_of(await response.read(), response.status)


async def result(lines: AsyncIterator[Any]) -> Any:
    """The end of a stream."""
    last = [line async for line in lines][-1]
    assert isinstance(last, Done)
    return last.result


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    """Wait for what happens by itself."""

    async def until(true: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.005)

    return until


@pytest.fixture(scope="session")
def node_in(pki: Any) -> Callable[[Path], Node]:
    """A node with images that keeps everything in this directory. Nothing of it runs yet."""

    def node_in(directory: Path) -> Node:
        node = Node(directory, pki)
        node.add_images()
        return node

    return node_in


@pytest.fixture
async def bare_node(tmp_path: Path, node_in: Callable[[Path], Node]) -> AsyncIterator[Node]:
    """A node with an image, and no subnet yet."""
    node = node_in(tmp_path)
    await node.start()
    yield node
    await node.stop()
    await node.writer.close()


@pytest.fixture
async def node(bare_node: Node) -> Node:
    """A node with four addresses to give."""
    await bare_node.furnish()
    return bare_node


@pytest.fixture
def user_of(node: Node) -> Callable[[ssl.SSLContext], User]:
    return lambda context: User(node, context)


@pytest.fixture
async def ann(node: Node) -> AsyncIterator[User]:
    async with node.user("ann") as user:
        yield user


@pytest.fixture
async def bob(node: Node) -> AsyncIterator[User]:
    async with node.user("bob") as user:
        yield user


@pytest.fixture
async def oper(node: Node) -> AsyncIterator[User]:
    async with node.user("oper") as user:
        yield user
