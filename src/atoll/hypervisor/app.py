"""The wiring of a Hypervisor: the only place where all its parts meet. Effects: a running agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine

from aiohttp import web

from atoll.api.server import application
from atoll.drivers.machine import registry
from atoll.drivers.machine.base import Exit
from atoll.hypervisor.bootlog import BootLogs
from atoll.hypervisor.config import Config
from atoll.hypervisor.http import MAX_BODY, CertificateGate, Handlers
from atoll.hypervisor.machines import Machines
from atoll.hypervisor.network.bridges import Bridges
from atoll.hypervisor.readiness import Board
from atoll.hypervisor.records import Records
from atoll.hypervisor.recovery import recover
from atoll.hypervisor.service import Hypervisor, NodeFacts
from atoll.identity.access import Operators
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.tls import ServerCertificate, server_context
from atoll.images.store import ImageStore
from atoll.model.node import Capacity
from atoll.system import clock, files, host

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
    records, images = Records(config.state), ImageStore(config.images)
    records.prepare()
    board = Board(clock.monotonic)
    vms = records.load()
    operators = Operators(users=config.operator_users, groups=config.operator_groups)
    service: Hypervisor

    def on_exit(ip: str, exit_: Exit) -> None:
        service.on_exit(ip, exit_)

    probe = images.get(config.probe_image)
    setting = registry.Setting(on_exit, images.path(probe, probe.boot.kernel), config.state)
    drivers = {name: await registry.load(name, setting) for name in config.drivers}
    for driver in drivers.values():
        stack.push_async_callback(driver.close)
    described = {name: await driver.describe() for name, driver in drivers.items()}
    network = Bridges(
        config.service_prefix,
        lambda mac: service.find_by_mac(mac),
        lambda ip: service.find_by_ip(ip),
        lambda vm: service.subnet_of(vm),
        records.user_data,
        lambda ip, stage: service.reached(ip, stage),
    )
    stack.push_async_callback(network.close)
    machines = Machines(
        drivers,
        {name: info.overhead_mib for name, info in described.items()},
        network,
        images,
        config.cgroup,
        records.directory,
        lambda vm: service.subnet_of(vm),
    )
    facts = NodeFacts(
        name=config.name,
        ip=config.ip,
        boot_id=host.boot_id(),
        total=_capacity(config),
        operators=operators,
        drivers=tuple(described.values()),
    )
    service = Hypervisor(facts, records, machines, network, images, board, vms)
    await network.serve(service.subnets())
    await recover(service, machines, vms, facts.boot_id, config.cgroup)
    logs = BootLogs(records.directory)
    await _listen(config, Handlers(service, records, images, logs), operators, stack)
    _background(stack, logs.keep_small(lambda: [vm.ip for vm in service.list()]))


def _capacity(config: Config) -> Capacity:
    """What there is, less what the host keeps for itself."""
    return Capacity(
        milli_cpus=host.cores() * 1000,
        memory_mib=max(0, host.memory_mib()[0] - config.memory_reserve_mib),
        disk_mib=max(0, files.free_mib(config.state) - config.disk_reserve_mib),
    )


async def _listen(
    config: Config, handlers: Handlers, operators: Operators, stack: contextlib.AsyncExitStack
) -> None:
    pki = config.pki
    context = server_context(pki.certificate, pki.key, pki.ca)
    peers = PeerReader(pki.ca.read_bytes(), Revocations(pki.crl, pki.ca))
    gate = CertificateGate(peers, operators)
    runner = web.AppRunner(application(handlers.bound(), gate, MAX_BODY), access_log=None, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for address in config.listen:
        await web.TCPSite(runner, address, config.port, ssl_context=context, reuse_address=True).start()
    _background(stack, _reload(ServerCertificate(context, pki.certificate, pki.key)))


async def _reload(certificate: ServerCertificate) -> None:
    """For ever: take up a renewed certificate."""
    while True:
        await asyncio.sleep(RELOAD_EVERY_S)
        certificate.reload_if_changed()


def _background(stack: contextlib.AsyncExitStack, work: Coroutine[None, None, None]) -> None:
    stack.callback(asyncio.ensure_future(work).cancel)
