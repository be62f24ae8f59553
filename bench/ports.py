"""What a port costs that is plugged into a node's network and taken out again, beside a bare change of one element.

Effects: a network namespace of the bench's own, with a bridge, its servers and the elements of thousands of ports.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import Figure, Findings, Series, alternate, at_most, say, series

from atoll.guestnet.netboot.library import Library
from atoll.hypervisor.network.base import Port
from atoll.hypervisor.network.bridges import Backends, Bridges, Names
from atoll.hypervisor.network.callers import Callers, Census
from atoll.hypervisor.network.control import ControlPort
from atoll.hypervisor.network.leases import Leases
from atoll.images.store import ImageStore
from atoll.model.network import Address, Subnet, mac_for
from atoll.plan.addresses import Given, nic_of
from atoll.system import clock, namespaces, processes

TITLE = "A port of a VM in the network"
ROUNDS = 30
COUNTS = (0, 100, 2000)
BOUND_MS = 1.0
SUBNET = Subnet("bench", "10.96.0.0/16", "10.96.0.1")
ADD, DELETE = "nft, one element added", "nft, one element deleted"
PLUG, UNPLUG = "plug", "unplug"


def measure() -> Findings:
    name = f"atoll-bench-{os.getpid()}"
    namespaces.ensure(name)
    try:
        return namespaces.inside(name, lambda: asyncio.run(_measure(name)))
    finally:
        for left in namespaces.names():
            if left == name or left.startswith(f"{name}-"):
                namespaces.delete(left)


async def _measure(name: str) -> Findings:
    figures: list[Figure] = []
    with TemporaryDirectory() as directory:
        bridges = _bridges(name, Path(directory))
        await bridges.serve([SUBNET])
        plugged = 0
        for count in COUNTS:
            await bridges.plug(*(_port(number) for number in range(plugged, count)))
            plugged = count
            say(f"{count} ports")
            taken = await _series(bridges, count)
            for ours, limit in ((PLUG, ADD), (UNPLUG, DELETE)):
                target = at_most(f"under {BOUND_MS:g} ms", taken[ours].median, BOUND_MS)
                figures.append(Figure(taken[ours].name, "ms", taken[ours], taken[limit], target))
        await bridges.close()
    return Findings(
        tuple(figures),
        notes=(
            "A plug is one transaction of nftables and the neighbours of the node and of its servers.",
            "The limit is the nft program, which is a process; our library call takes a tenth of a millisecond.",
        ),
    )


async def _series(bridges: Bridges, count: int) -> dict[str, Series]:
    samples: dict[str, list[float]] = {PLUG: [], UNPLUG: []}
    port = _port(60_000)
    for _ in range(ROUNDS):
        for name, work in ((PLUG, bridges.plug), (UNPLUG, bridges.unplug)):
            began = time.perf_counter()
            await work(port)
            samples[name].append(_ms_since(began))
    contestants: dict[str, Callable[[], float]] = {ADD: lambda: _nft("add"), DELETE: lambda: _nft("delete")}
    limits = alternate(ROUNDS, contestants, lambda _: None)
    return limits | {name: series(f"{name} at {count} ports", taken) for name, taken in samples.items()}


def _nft(verb: str) -> float:
    element = '{ "bench" . 52:54:00:00:00:01 }'
    began = time.perf_counter()
    processes.run_blocking(("nft", verb, "element", "bridge", "atoll", "port_macs", element))
    return _ms_since(began)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _port(number: int) -> Port:
    ip = f"10.96.{number // 250 + 1}.{number % 250 + 2}"
    return Port(ip, 0, nic_of(SUBNET, Address(ip, mac_for(ip))), SUBNET)


def _bridges(name: str, directory: Path) -> Bridges:
    given = Given((SUBNET,))
    callers = Callers(lambda ip: b"")
    leases = Leases(tuple, lambda: given, clock.now)
    callers.count(Census(lambda: given, leases, lambda subnet, mark: None, tuple, lambda ip, stage: None))
    library = Library(directory, ImageStore(directory))
    return Bridges(Names(name, "bench 10.96.0.1"), callers, Backends(library, ControlPort(6976)))
