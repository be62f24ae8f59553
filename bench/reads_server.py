"""A server process for the case api_reads: `reads_server.py ours|bare DIRECTORY`.

Both speak the same TLS, and answer GET /v1/vms with records that they encode for each request. `ours` is a
whole Hypervisor on the sim driver; `bare` is one aiohttp handler, with the records in DIRECTORY/vms.json.
Effects: listens on a port of 127.0.0.1, which it prints; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
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
from atoll.hypervisor.http import MAX_BODY, Handlers
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.network.sim import SimNetwork
from atoll.hypervisor.service import Hypervisor, NodeFacts
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.readiness import Board
from atoll.hypervisor.vms.records import Records
from atoll.identity.access import Operators
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.tls import server_context
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.node import Capacity
from atoll.model.vm import VM
from atoll.serving.audit import AuditLog
from atoll.serving.gate import CertificateGate
from atoll.system import clock
from atoll.system.writer import Writer

USER = "bench"
IMAGE = "nothing"


async def ours(directory: Path) -> web.Application:
    """The stack of a Hypervisor, from the certificate to the service, with VMs that are simulated."""
    operators = Operators(users=(USER,))
    records, images = Records(directory / "state"), ImageStore(directory / "images")
    records.prepare()
    service: Hypervisor
    driver = SimDriver(lambda ip, exit_: service.on_exit(ip, exit_))
    network = SimNetwork(lambda ip, stage: service.reached(ip, stage))
    machines = Machines(
        {"sim": driver},
        {"sim": None},
        network,
        images,
        "none",
        records.directory,
        lambda vm: service.subnet_of(vm),
    )
    info = await driver.describe()
    facts = NodeFacts("bench", "127.0.0.1", "", Capacity(1 << 20, 1 << 20, 1 << 20), operators, (info,))
    service = Hypervisor(facts, records, machines, network, images, Board(clock.monotonic), {})
    add_image(images, directory)
    ca = directory / "ca.pem"
    peers = PeerReader(ca.read_bytes(), Revocations(directory / "crl.pem", ca))
    meter = Meter(service.list, lambda vm: "none", lambda vm: 0)
    audit = AuditLog(records.directory("audit.jsonl"), Writer())
    handlers = Handlers(service, records, images, BootLogs(records.directory), meter, audit)
    return application(handlers.bound(), CertificateGate(peers, operators), MAX_BODY)


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
