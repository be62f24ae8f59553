"""The wiring of a Hypervisor: the only place where all its parts meet. Effects: a running agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from datetime import timedelta

from aiohttp import web

from atoll.api.server import application
from atoll.drivers.machine import registry
from atoll.guestnet.metadata.guest import Place
from atoll.guestnet.netboot.library import Library
from atoll.hypervisor.config import Config, Roles
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.credentials import Credentials
from atoll.hypervisor.http.handlers import MAX_BODY, Backstage, Handlers
from atoll.hypervisor.launch.hotpool import Pooling
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.launch.templates import Limits, Templates
from atoll.hypervisor.network.bridges import Bridges
from atoll.hypervisor.network.control import ControlPort
from atoll.hypervisor.network.guests import Guests
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.service import Hypervisor, Options
from atoll.hypervisor.signals import Signals
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.hypervisor.vms.recovery import recover, relaunch_all
from atoll.hypervisor.vms.room import NodeFacts
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores
from atoll.identity.access import Operators
from atoll.identity.brokers import HttpsBroker
from atoll.identity.issuers import AuthorityIssuer, HttpsIssuer, RoleIssuer
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.tls import ServerCertificate, server_context
from atoll.images.store import ImageStore
from atoll.model.node import Capacity
from atoll.plan.capacity import promised
from atoll.plan.volumes import total_mib
from atoll.serving.audit import AuditLog
from atoll.serving.gate import CertificateGate
from atoll.serving.supervisor import Supervisor
from atoll.system import host, link_events

log = logging.getLogger(__name__)

RELOAD_EVERY_S = 10.0


async def serve(config: Config) -> None:
    """Recover, serve until told to stop, let go. VMs run on."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        await _start(config, stack)
        log.info("serving on port %d", config.port)
        await stopping.wait()
        log.info("stopping; VMs run on")


async def _start(config: Config, stack: contextlib.AsyncExitStack) -> None:
    background = await stack.enter_async_context(Supervisor())
    signals = Signals()
    records, images = Records(config.state), ImageStore(config.images)
    records.prepare()
    loaded = records.load()
    stores = Stores(config.stores or {"default": config.state / "volumes"}, config.disk_reserve_mib)
    stores.prepare({ip: record.vm for ip, record in loaded.items()}, records.unreadable, records.carried)
    vms = Inventory(config.name, records, loaded)
    service: Hypervisor

    probe = images.get(config.probe_image)
    kernel = images.path(probe, probe.boot.kernel)
    setting = registry.Setting(signals.exit, kernel, config.state, config.container_engine)
    drivers = {name: await registry.load(name, setting) for name in config.drivers}
    for driver in drivers.values():
        stack.push_async_callback(driver.close)
    described = {name: await driver.describe() for name, driver in drivers.items()}
    control = ControlPort(config.port)
    credentials = _credentials(config.roles, vms, records)
    if credentials is not None:
        stack.callback(credentials.close)
    network = Bridges(
        config.service_prefix,
        lambda mac: service.lease_of(mac),
        lambda subnet: service.holdings.leases.macs(subnet),
        Guests(
            lambda ip: service.guest_at(ip),
            lambda vm: service.holdings.subnet_of(vm),
            records.user_data,
            credentials,
            Place(config.region),
        ),
        control.add,
        signals.reached,
        Library(config.state / "tftp", lambda ip: service.netboot_client(ip), images),
        lambda ip, state: service.holdings.leases.note(ip, state),
    )
    stack.push_async_callback(network.close)
    holdings = Holdings(config.name, records, network, vms)
    overheads_mib = {name: info.overhead_mib for name, info in described.items()}
    templates = Templates(
        config.state / "templates",
        Limits(config.templates, config.memory_reserve_mib, config.disk_reserve_mib),
        drivers,
        overheads_mib,
        images,
        config.cgroup,
        lambda: service.pool.wake(),
    )
    machines = Machines(
        drivers,
        overheads_mib,
        network,
        images,
        config.cgroup,
        records.directory,
        holdings.subnet_of,
        templates,
        max_processes={name: info.max_processes for name, info in described.items()},
        volume_path=stores.path,
    )
    facts = NodeFacts(
        name=config.name,
        ip=config.ip,
        boot_id=host.boot_id(),
        total=_capacity(config, stores),
        cores=host.cores(),
        overcommit=config.overcommit,
        operators=Operators(users=config.operator_users, groups=config.operator_groups),
        drivers=tuple(described.values()),
        has_roles=credentials is not None,
        takes_credentials=credentials is not None and credentials.takes_own,
    )
    audit = AuditLog(config.state / "audit.jsonl")
    pooling = Pooling(templates, config.hot_pool, config.memory_reserve_mib)
    bench = Workbench(facts, records, vms, holdings, machines, network, images, stores, background)
    service = Hypervisor(bench, signals, Options(stores, pooling, audit))
    stack.push_async_callback(service.close)
    await network.serve(holdings.subnets)
    stack.callback(link_events.watch(signals.link))
    await recover(service, bench, config.cgroup)
    logs = BootLogs(records.directory)
    meter = Meter(vms.list, machines.group, stores.used_mib)
    handlers = Handlers(service, Backstage(records, images, logs, meter, audit))
    await _listen(config, handlers, facts.operators, control, stack, background)
    background.begin("emptying the trash", records.empty_trash())
    background.begin("starting VMs after a reboot of the host", relaunch_all(service.life, bench))
    background.keep("keeping boot logs small", lambda: logs.keep_small(lambda: [vm.ip for vm in vms.list()]))
    templates.prepare()
    background.keep("making templates", templates.tend)
    if config.hot_pool:
        background.keep("filling the hot pool", service.pool.tend)
    if credentials is not None:
        background.keep("renewing the credentials of VMs", credentials.keep)


def _credentials(roles: Roles | None, vms: Inventory, records: Records) -> Credentials | None:
    """What keeps the credentials of VMs that have a role, where this node can have any issued."""
    if roles is None:
        return None
    issuer: RoleIssuer
    if roles.issuer is not None:
        issuer = HttpsIssuer(roles.issuer)
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


async def _listen(
    config: Config,
    handlers: Handlers,
    operators: Operators,
    control: ControlPort,
    stack: contextlib.AsyncExitStack,
    background: Supervisor,
) -> None:
    pki = config.pki
    context = server_context(pki.certificate, pki.key, pki.ca)
    peers = PeerReader(pki.ca.read_bytes(), Revocations(pki.crl, pki.ca))
    gate = CertificateGate(peers, operators, handlers.auditor.denied)
    runner = web.AppRunner(application(handlers.bound(), gate, MAX_BODY), access_log=None, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for address in config.listen:
        await web.TCPSite(runner, address, config.port, ssl_context=context, reuse_address=True).start()
    await control.open(runner, context)
    certificate = ServerCertificate(context, pki.certificate, pki.key)
    background.keep("taking up a renewed certificate", lambda: _reload(certificate))


async def _reload(certificate: ServerCertificate) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(RELOAD_EVERY_S)
        certificate.reload_if_changed()
