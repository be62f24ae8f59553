"""A server process for the case api_reads: `reads_server.py ours|bare DIRECTORY`.

Both speak the same TLS, and answer GET /v1/vms with records that they encode for each request. `ours` is a
whole Hypervisor on the sim driver; `bare` is one aiohttp handler, with the records in DIRECTORY/vms.json.
Effects: listens on a port of 127.0.0.1, which it prints; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from atoll.api.hypervisor import VM_LIST
from atoll.api.server import application
from atoll.drivers.machine.sim import SimDriver
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.http.handlers import Backstage, Handlers
from atoll.hypervisor.launch.holds import ImageHolds
from atoll.hypervisor.launch.ids import NodeIds
from atoll.hypervisor.launch.kinds import Kinds
from atoll.hypervisor.launch.machines import MachinePlace, Machines
from atoll.hypervisor.launch.supplies import Supplies
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.network.sim import SimNetwork
from atoll.hypervisor.publishing.base import Place
from atoll.hypervisor.publishing.sim import SimRelay
from atoll.hypervisor.service import Hypervisor, Options
from atoll.hypervisor.signals import Signals
from atoll.hypervisor.ssh import SshCertificates
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.hypervisor.vms.room import NodeFacts
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores
from atoll.identity.access import Operators
from atoll.identity.enrolment import Enrolment
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.tls import server_context
from atoll.identity.trust import read_cas
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.node import Capacity
from atoll.model.vm import VM
from atoll.serving.audit import AuditLog
from atoll.serving.event_log import EventLog
from atoll.serving.gate import CertificateGate
from atoll.serving.health import Health
from atoll.serving.supervisor import Supervisor
from atoll.system import clock
from atoll.system.ids import Register
from atoll.system.owners import owner_of
from atoll.system.writer import Writer

USER = "bench"
IMAGE = "nothing"


async def ours(directory: Path) -> web.Application:
    """The stack of a Hypervisor, from the certificate to the service, with VMs that are simulated."""
    operators = Operators(users=(USER,))
    signals, background = Signals(), Supervisor()
    records, images = Records(directory / "state", Writer()), ImageStore(directory / "images")
    records.prepare()
    driver, network = SimDriver(signals.exit), SimNetwork(signals.reached)
    vms = Inventory("bench", records, {})
    holdings = Holdings("bench", records, network, vms)
    owner, kinds = owner_of(directory / "state"), await Kinds.of({"sim": driver})
    ids = NodeIds(Register(directory / "ids", owner), kinds.id_spaces())
    supplies = Supplies(kinds, images, ImageHolds(images, owner), ids)
    machines = Machines(supplies, network, MachinePlace("none", records.directory, holdings.subnet_of))
    drivers = tuple(kinds.described.values())
    facts = NodeFacts("bench", "127.0.0.1", "", Capacity(1 << 20, 1 << 20, 1 << 20), operators, drivers)
    stores = Stores({}, owner)
    bench = Workbench(facts, records, vms, holdings, machines, network, images, stores, background)
    service = Hypervisor(
        bench,
        signals,
        Options(stores, Place(SimRelay(), lambda _: socket.socket()), SshCertificates(None, vms.list)),
    )
    add_image(images, directory)
    cas = read_cas((directory / "ca.pem").read_bytes())
    peers = PeerReader(cas, Revocations([directory / "crl.pem"], cas))
    meter = Meter(vms.list, lambda vm: "none", lambda vm: 0)
    audit = AuditLog(records.directory("audit.jsonl"), Writer())
    history = EventLog(records.directory("events.jsonl"), Writer(), clock.now)
    logs, health = BootLogs(records.directory), Health(background)
    backstage = Backstage(records, images, logs, meter, audit, history, health.families, Enrolment())
    handlers = Handlers(service, backstage)
    return application(handlers.bound(), CertificateGate(peers, bench.operators))


def add_image(images: ImageStore, directory: Path) -> None:
    empty = directory / "empty"
    empty.touch()
    nothing = {"kernel": empty, "initrd": empty}
    images.add(IMAGE, kinds=("sim",), boot=DirectBoot("kernel", "initrd"), files=nothing, ready="metadata")


async def bare(directory: Path) -> web.Application:
    """What aiohttp and msgspec alone can do with these records."""
    vms = msgspec.json.decode((directory / "vms.json").read_bytes(), type=tuple[VM, ...])
    encode = msgspec.json.Encoder().encode

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=encode(vms), headers={"Content-Type": "application/json"})

    app = web.Application()
    app.router.add_get(VM_LIST.path, handler)
    return app


KINDS: dict[str, Callable[[Path], Awaitable[web.Application]]] = {"ours": ours, "bare": bare}


async def serve(kind: str, directory: Path) -> None:
    context = server_context(directory / "server.pem", directory / "server.key", directory / "ca.pem")
    runner = web.AppRunner(await KINDS[kind](directory), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    print(runner.addresses[0][1], flush=True)
    # Whoever started us holds the other end: it closes also when they are killed.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
