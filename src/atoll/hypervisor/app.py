"""The wiring of a Hypervisor: the only place where all its parts meet. Effects: a running agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator
from datetime import timedelta

from prometheus_client.metrics_core import Metric

from atoll.api.hypervisor import LAUNCHES
from atoll.api.server import application
from atoll.drivers.machine import registry
from atoll.guestnet.dns.forward import Forwarder
from atoll.guestnet.dns.upstreams import HostServers
from atoll.guestnet.metadata.guest import Place
from atoll.guestnet.netboot.library import Library
from atoll.hypervisor.config import Config, Dns, Roles, outside_addresses, share_rules
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.credentials import Credentials
from atoll.hypervisor.doors import Doors, OutsideDoors
from atoll.hypervisor.http.handlers import Backstage, Handlers
from atoll.hypervisor.launch.folders import Folders
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
from atoll.hypervisor.network.outside import Outside
from atoll.hypervisor.publishing.base import Place as Publishing
from atoll.hypervisor.publishing.process import PublisherProcess
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
from atoll.hypervisor.volumes.stores import Stores, check_not_lost
from atoll.identity.access import Operators
from atoll.identity.brokers import HttpsBroker
from atoll.identity.enrolment import Enrolment
from atoll.identity.issuers import AuthorityIssuer, HttpsIssuer, RoleIssuer
from atoll.identity.roles import RoleCallers
from atoll.identity.ssh_issuer import AuthoritySshIssuer
from atoll.images.store import ImageStore
from atoll.model.node import Capacity
from atoll.plan.ids import Space
from atoll.plan.macs import node_identity
from atoll.plan.volumes import total_mib
from atoll.serving.audit import AuditLog
from atoll.serving.door.door import BACKLOG, families
from atoll.serving.event_log import EventLog
from atoll.serving.gate import CertificateGate
from atoll.serving.health import Health
from atoll.serving.hooks.hook import make_hooks
from atoll.serving.supervisor import Supervisor
from atoll.serving.tls import Tls
from atoll.system import clock, heap, host, link_events, listening, namespaces
from atoll.system.ids import Register
from atoll.system.owners import owner_of
from atoll.system.spares import Spares
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
    spares = Spares(config.state / "spares")
    writer = Writer(spares)
    stack.push_async_callback(writer.close)
    records, images = Records(config.state, writer), ImageStore(config.images)
    places = config.stores or {"default": config.state / "volumes"}
    check_not_lost(config.state, places.values(), config.cgroup)
    records.prepare()
    await writer.run(spares.fill)
    supplies = await _supplies(config, images, signals, stack)
    loaded = await settle(supplies.ids, supplies.kinds, records, records.load())
    used = images_of(record.vm for record in loaded.values())
    await asyncio.to_thread(supplies.holds.prepare, used, complete=not records.unreadable)
    stores = Stores(places, owner_of(config.state), config.disk_reserve_mib, roots=config.state / "vms")
    stores.prepare(loaded, records.unreadable, records.carried)
    vms = Inventory(config.name, records, loaded)
    control = ControlPort(config.port)
    credentials = _credentials(config.roles, config.role_callers, vms, records)
    if credentials is not None:
        stack.callback(credentials.close)
    forwarder = _forwarder(config.dns, outside)
    if forwarder is not None:
        stack.push_async_callback(forwarder.close)
    ssh = _ssh(config, vms)
    await ssh.prepare()
    callers = Callers(records.user_data, credentials, Place(config.region), ssh)
    library = Library(config.state / "tftp", images)
    network = Bridges(
        Names(
            config.service_prefix,
            node_identity(config.name, config.ip),
            config.guests_reach,
            config.namespace,
        ),
        callers,
        Backends(library, control, forwarder, Outside(outside, config.ip, config.uplink)),
    )
    stack.push_async_callback(network.close)
    holdings = Holdings(config.name, records, network, vms)
    templates = Templates(
        config.state / "templates",
        TemplateLimits(config.templates, config.memory_reserve_mib, config.disk_reserve_mib),
        supplies,
        config.cgroup,
        signals.template,
    )
    place = MachinePlace(
        config.cgroup,
        records.directory,
        holdings.subnet_of,
        stores.path,
        stores.check_usable,
        Folders(share_rules(config), lambda: holdings.given.shares),
    )
    machines = Machines(supplies, network, place, templates)
    facts = _facts(config, supplies.kinds, stores, credentials)
    audit = AuditLog(config.state / "audit.jsonl", writer, keep_days=config.audit_days)
    stack.push_async_callback(audit.settle)
    # With a writer of its own: what VMs wait for does not wait for it.
    chronicler = Writer()
    stack.push_async_callback(chronicler.close)
    event_log = EventLog(config.state / "events.jsonl", chronicler, clock.now, vms.list())
    stack.push_async_callback(event_log.settle)
    vms.changed.listen(event_log.note)
    pooling = Pooling(templates, config.hot_pool, config.memory_reserve_mib)
    bench = Workbench(facts, records, vms, holdings, machines, network, images, stores, background)

    async def publishers_uid() -> int:
        await supplies.ids.until_free(Space.USERS)
        return supplies.ids.take("publisher", Space.USERS).first

    publisher = PublisherProcess(config.state, config.cgroup, publishers_uid)
    stack.callback(publisher.close)
    publishing = Publishing(
        publisher,
        lambda one: listening.at(one.address, one.port, BACKLOG, outside),
        config.publish,
        config.port,
    )
    service = Hypervisor(bench, signals, Options(stores, publishing, ssh, pooling, audit))
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

    enrolment = Enrolment(tls.ca_pem, config.pki.authority)
    handlers = Handlers(
        service, Backstage(records, images, logs, meter, audit, event_log, measured, enrolment)
    )
    gate = CertificateGate(
        tls.peers, bench.operators, handlers.auditor.denied, limits=config.user_limits, launches=LAUNCHES
    )
    await doors.open(application(handlers.bound(), gate), stack)
    if outside is not None and config.listen_outside:
        # First: whoever waits for the node's own address finds these open as well.
        outdoors = OutsideDoors(doors, outside_addresses(config.listen_outside, config.port), outside)
        stack.callback(outdoors.close)
        outdoors.open()
        background.keep("listening at addresses of the host", outdoors.keep)
    for address in config.listen:
        stack.callback(doors.listen((address, config.port)).close)
    control.open(doors.guests)
    stack.callback(control.close)
    background.keep("ending calls that may not go on", gate.calls.keep)
    background.keep("renewing the node's certificate", tls.keep_certificate)
    background.keep("reading revocation lists", tls.keep_revocations)
    background.keep("watching the loop", health.watch)
    background.keep("giving back memory", heap.keep_small)
    background.keep("writing what the audit log counts", audit.keep)
    background.keep("writing the history of events", event_log.keep)
    background.finish("emptying the trash", records.empty_trash)
    background.keep("keeping what is no VM's in stores for its time", stores.tend)
    background.finish("starting VMs after a reboot of the host", lambda: relaunch_all(service.life, bench))
    background.keep("keeping boot logs small", lambda: logs.keep_small(lambda: [vm.ip for vm in vms.list()]))
    await templates.prepare()
    background.keep("claiming user ids", supplies.ids.tend)
    background.keep("letting go of images", lambda: supplies.holds.tend(service.images_in_use))
    background.keep("making templates", templates.tend)
    if config.hot_pool:
        background.keep("filling the hot pool", service.pool.tend)
    if credentials is not None:
        background.keep("renewing the credentials of VMs", credentials.keep)
    hooks = make_hooks(config.hooks, config.state / "hooks", service.events, config.name, outside)
    for number, hook in enumerate(hooks, 1):
        background.keep(f"hook {number}", hook.run)


async def _supplies(
    config: Config, images: ImageStore, signals: Signals, stack: contextlib.AsyncExitStack
) -> Supplies:
    """The kinds of machine that this node has, and what is shared by all agents of its host."""
    probe = images.get(config.probe_image)
    kernel = images.path(probe, probe.boot.kernel)
    setting = registry.Setting(
        signals.exit,
        kernel,
        config.state,
        config.container_engine,
        on_stall=signals.stall,
        on_lost=signals.folder,
    )
    drivers = {name: await registry.load(name, setting) for name in config.drivers}
    for driver in drivers.values():
        stack.push_async_callback(driver.close)
    kinds, owner = await Kinds.of(drivers), owner_of(config.state)
    # The publisher runs as one user, whatever the kinds of machine need.
    ids = NodeIds(Register(config.ids, owner), kinds.id_spaces() | {Space.USERS})
    return Supplies(kinds, images, ImageHolds(images, owner), ids)


def _facts(config: Config, kinds: Kinds, stores: Stores, credentials: Credentials | None) -> NodeFacts:
    """What does not change as long as this agent runs."""
    return NodeFacts(
        name=config.name,
        ip=config.ip,
        boot_id=host.boot_id(),
        there=_capacity(config, stores),
        cores=host.cores(),
        overcommit=config.overcommit,
        root_mib=config.root_mib,
        operators=Operators(users=config.operator_users, groups=config.operator_groups),
        drivers=tuple(kinds.described.values()),
        has_roles=credentials is not None,
        role_callers=config.role_callers,
        takes_credentials=credentials is not None and credentials.takes_own,
    )


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
        tell=lambda vm, problem, cloud: vms.update(vm, role_problem=problem, role_cloud=cloud),
    )


def _ssh(config: Config, vms: Inventory) -> SshCertificates:
    """What signs for `atoll vm ssh`, where the CA is on this machine."""
    authority = config.roles.authority if config.roles is not None else None
    directory = authority or config.pki.authority
    return SshCertificates(AuthoritySshIssuer(directory) if directory is not None else None, vms.list)


def _capacity(config: Config, stores: Stores) -> Capacity:
    """What there is for VMs: less what the host keeps for itself."""
    memory_mib = max(0, host.memory_mib()[0] - config.memory_reserve_mib)
    return Capacity(host.cores() * 1000, memory_mib, total_mib(stores.spaces))
