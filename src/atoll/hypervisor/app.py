"""The wiring of a Hypervisor: the only place where all its parts meet. Effects: a running agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta

from aiohttp import web
from prometheus_client.metrics_core import Metric

from atoll.api.hypervisor import LAUNCHES
from atoll.api.server import application
from atoll.drivers.machine import registry
from atoll.errors import HostFailure, Unauthenticated
from atoll.guestnet.dns.forward import Forwarder
from atoll.guestnet.dns.upstreams import HostServers
from atoll.guestnet.metadata.guest import Place
from atoll.guestnet.netboot.library import Library
from atoll.hypervisor.config import Config, Dns, Roles
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.credentials import Credentials
from atoll.hypervisor.http.handlers import Backstage, Handlers
from atoll.hypervisor.launch.holds import ImageHolds, images_of
from atoll.hypervisor.launch.hotpool import Pooling
from atoll.hypervisor.launch.ids import NodeIds
from atoll.hypervisor.launch.kinds import Kinds
from atoll.hypervisor.launch.machines import MachinePlace, Machines
from atoll.hypervisor.launch.supplies import Supplies
from atoll.hypervisor.launch.templates import TemplateLimits, Templates
from atoll.hypervisor.network.bridges import Backends, Bridges, Names
from atoll.hypervisor.network.callers import Callers, Census
from atoll.hypervisor.network.control import ControlPort
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.service import Hypervisor, Options
from atoll.hypervisor.signals import Signals
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.ids import settle
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.hypervisor.vms.recovery import recover, relaunch_all
from atoll.hypervisor.vms.room import NodeFacts
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores, check_not_lost
from atoll.identity.access import Operators
from atoll.identity.brokers import HttpsBroker
from atoll.identity.issuers import AuthorityIssuer, HttpsIssuer, RoleIssuer
from atoll.identity.roles import RoleCallers
from atoll.images.store import ImageStore
from atoll.model.node import Capacity
from atoll.plan.capacity import promised
from atoll.plan.macs import node_identity
from atoll.plan.volumes import total_mib
from atoll.serving.audit import AuditLog
from atoll.serving.door.door import BACKLOG, Door, Listener, families, network_source
from atoll.serving.door.shares import guests_limits, operators_limits
from atoll.serving.gate import CertificateGate
from atoll.serving.health import Health
from atoll.serving.hooks.hook import make_hooks
from atoll.serving.supervisor import Supervisor
from atoll.serving.tls import Tls
from atoll.system import clock, host, link_events, listening, namespaces
from atoll.system.ids import Register
from atoll.system.owners import owner_of
from atoll.system.writer import Writer

log = logging.getLogger(__name__)


async def serve(config: Config, outside: str | None = None) -> None:
    """Recover, serve until told to stop, let go. VMs run on.

    `outside` is the network namespace around that of the node, where it has one of its own: what the host reaches
    is reached from there.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        await _start(config, outside, stack)
        log.info("serving on port %d", config.port)
        await stopping.wait()
        log.info("stopping; VMs run on")


async def _start(config: Config, outside: str | None, stack: contextlib.AsyncExitStack) -> None:
    background = await stack.enter_async_context(Supervisor())
    signals = Signals()
    writer = Writer()
    stack.push_async_callback(writer.close)
    records, images = Records(config.state, writer), ImageStore(config.images)
    places = config.stores or {"default": config.state / "volumes"}
    check_not_lost(config.state, places.values(), config.cgroup)
    records.prepare()
    owner = owner_of(config.state)
    service: Hypervisor

    probe = images.get(config.probe_image)
    kernel = images.path(probe, probe.boot.kernel)
    setting = registry.Setting(
        signals.exit, kernel, config.state, config.container_engine, on_stall=signals.stall
    )
    drivers = {name: await registry.load(name, setting) for name in config.drivers}
    for driver in drivers.values():
        stack.push_async_callback(driver.close)
    kinds = await Kinds.of(drivers)
    ids, holds = NodeIds(Register(config.ids, owner), kinds.id_spaces()), ImageHolds(images, owner)
    supplies = Supplies(kinds, images, holds, ids)
    loaded = await settle(ids, kinds, records, records.load())
    await asyncio.to_thread(
        holds.prepare, images_of(record.vm for record in loaded.values()), complete=not records.unreadable
    )
    stores = Stores(places, owner, config.disk_reserve_mib, roots=config.state / "vms")
    stores.prepare(loaded, records.unreadable, records.carried)
    vms = Inventory(config.name, records, loaded)
    control = ControlPort(config.port, config.listen)
    credentials = _credentials(config.roles, config.role_callers, vms, records)
    if credentials is not None:
        stack.callback(credentials.close)
    forwarder = _forwarder(config.dns, outside)
    if forwarder is not None:
        stack.push_async_callback(forwarder.close)
    callers = Callers(records.user_data, credentials, Place(config.region))
    library = Library(config.state / "tftp", images)
    network = Bridges(
        Names(config.service_prefix, node_identity(config.name, config.ip), config.guests_reach),
        callers,
        Backends(library, control, forwarder),
    )
    stack.push_async_callback(network.close)
    holdings = Holdings(config.name, records, network, vms)
    templates = Templates(
        config.state / "templates",
        TemplateLimits(config.templates, config.memory_reserve_mib, config.disk_reserve_mib),
        supplies,
        config.cgroup,
        lambda: service.pool.wake(),
    )
    place = MachinePlace(
        config.cgroup, records.directory, holdings.subnet_of, stores.path, stores.check_usable
    )
    machines = Machines(supplies, network, place, templates)
    facts = NodeFacts(
        name=config.name,
        ip=config.ip,
        boot_id=host.boot_id(),
        total=_capacity(config, stores),
        cores=host.cores(),
        overcommit=config.overcommit,
        root_mib=config.root_mib,
        operators=Operators(users=config.operator_users, groups=config.operator_groups),
        drivers=tuple(kinds.described.values()),
        has_roles=credentials is not None,
        role_callers=config.role_callers,
        takes_credentials=credentials is not None and credentials.takes_own,
    )
    audit = AuditLog(config.state / "audit.jsonl", writer, keep_days=config.audit_days)
    stack.push_async_callback(audit.settle)
    pooling = Pooling(templates, config.hot_pool, config.memory_reserve_mib)
    bench = Workbench(facts, records, vms, holdings, machines, network, images, stores, background)
    service = Hypervisor(bench, signals, Options(stores, pooling, audit))
    stack.push_async_callback(service.close)
    callers.count(
        Census(lambda: holdings.given, holdings.leases, service.find_port, vms.list, signals.reached)
    )
    await network.serve(holdings.subnets)
    stack.callback(link_events.watch(signals.link))
    await recover(service, bench, config.cgroup)

    def trimmed(ip: str) -> None:
        if (vm := vms.find_by_ip(ip)) is not None:
            machines.let_log_grow(vm)

    logs = BootLogs(records.directory, trimmed)
    meter = Meter(vms.list, machines.group, stores.used_mib)
    tls = Tls(config.pki)
    doors = Doors(
        tls, host.descriptors(), lambda ip: any(service.find_port(one.id, ip) for one in holdings.subnets)
    )
    health = Health(background, tls.certificate)

    def measured() -> Iterator[Metric]:
        yield from health.families()
        yield from network.families()
        yield from families((doors.operators, doors.guests))

    handlers = Handlers(service, Backstage(records, images, logs, meter, audit, measured))
    gate = CertificateGate(
        tls.peers, bench.operators, handlers.auditor.denied, limits=config.user_limits, launches=LAUNCHES
    )
    await _listen(config, application(handlers.bound(), gate), doors, control, stack)
    background.keep("ending calls that may not go on", gate.calls.keep)
    background.keep("renewing the node's certificate", tls.keep_certificate)
    background.keep("reading revocation lists", tls.keep_revocations)
    background.keep("watching the loop", health.watch)
    background.keep("writing what the audit log counts", audit.keep)
    background.finish("emptying the trash", records.empty_trash)
    background.keep("keeping what is no VM's in stores for its time", stores.tend)
    background.finish("starting VMs after a reboot of the host", lambda: relaunch_all(service.life, bench))
    background.keep("keeping boot logs small", lambda: logs.keep_small(lambda: [vm.ip for vm in vms.list()]))
    await templates.prepare()
    background.keep("claiming user ids", ids.tend)
    background.keep("letting go of images", lambda: holds.tend(service.images_in_use))
    background.keep("making templates", templates.tend)
    if config.hot_pool:
        background.keep("filling the hot pool", service.pool.tend)
    if credentials is not None:
        background.keep("renewing the credentials of VMs", credentials.keep)
    hooks = make_hooks(config.hooks, config.state / "hooks", service.events, config.name, outside)
    for number, hook in enumerate(hooks, 1):
        background.keep(f"hook {number}", hook.run)


def _forwarder(dns: Dns, outside: str | None) -> Forwarder | None:
    """What asks other DNS servers for guests, where they may be asked."""
    if not dns.forward:
        return None

    async def configured() -> tuple[str, ...]:
        return dns.servers

    servers = configured if dns.servers else HostServers()
    if outside is None:
        return Forwarder(servers)
    # A server of the host's may listen on its loopback only, and NAT is for guests: not for the node itself.
    return Forwarder(servers, lambda family, kind: namespaces.socket_in(outside, family, kind))


def _credentials(
    roles: Roles | None, callers: RoleCallers, vms: Inventory, records: Records
) -> Credentials | None:
    """What keeps the credentials of VMs that have a role, where this node can have any issued."""
    if roles is None:
        return None
    issuer: RoleIssuer
    if roles.issuer is not None:
        issuer = HttpsIssuer(roles.issuer, callers)
    else:
        assert roles.authority is not None
        issuer = AuthorityIssuer(roles.authority, timedelta(seconds=roles.lifetime_s))
    broker = HttpsBroker(roles.broker.url, roles.broker.ca) if roles.broker is not None else None
    return Credentials(
        issuer,
        broker,
        vms.list,
        own=records.credentials,
        tell=lambda vm, problem: vms.update(vm, role_problem=problem),
    )


def _capacity(config: Config, stores: Stores) -> Capacity:
    """What may be promised: what there is, less what the host keeps for itself, as often as is allowed."""
    memory_mib = host.memory_mib()[0] - config.memory_reserve_mib
    return promised(host.cores(), memory_mib, total_mib(stores.spaces), config.overcommit)


class Doors:
    """The ways in to the API: operators have one, guests another, and neither can fill the other's."""

    def __init__(self, tls: Tls, descriptors: int, is_guest: Callable[[str], bool]) -> None:
        """`is_guest` tells whether an address is that of a VM."""

        def is_known(certificate: bytes) -> bool:
            try:
                tls.peers.identity(certificate, clock.now())
            except Unauthenticated:
                return False
            return True

        self.operators = Door("operators", tls.context, operators_limits(descriptors), is_known)
        self.guests = Door("guests", tls.context, guests_limits(descriptors), is_known)
        self._is_guest = is_guest

    def take(self, accepted: socket.socket, ip: str) -> None:
        """Who comes to the node's own addresses. A guest stays one, whichever way it takes."""
        if self._is_guest(ip):
            self.guests.take(accepted, ip)
        else:
            self.operators.take(accepted, network_source(ip))


async def _listen(
    config: Config,
    served: web.Application,
    doors: Doors,
    control: ControlPort,
    stack: contextlib.AsyncExitStack,
) -> None:
    runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    for door in (doors.operators, doors.guests):
        door.begin(runner.server)
        stack.push_async_callback(door.close)
    for address in config.listen:
        try:
            opened = listening.at(address, config.port, BACKLOG)
        except OSError as error:
            raise HostFailure(
                f"listening on {address}:{config.port}: {error.strerror or error}",
                hint="another agent may serve there; `listen` and `port` of the configuration say where this one does",
            ) from error
        stack.callback(Listener(opened, doors.take).close)
    control.open(doors.guests)
    stack.callback(control.close)
