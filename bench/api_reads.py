"""API reads per second over mTLS: the Hypervisor's stack, and a bare aiohttp handler with the same records.

One server process on one core, the load on another. Both servers are there all the time; one at a time is
asked. Effects: two processes, TLS on 127.0.0.1, a temporary directory with a CA.
"""

from __future__ import annotations

import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import reads_load
from measuring import Figure, Findings, Series, alternate, at_least, say, series
from reads_server import IMAGE, USER

from atoll.api.client import Client
from atoll.api.hypervisor import (
    NODE_ADD_ADDRESS,
    NODE_ADD_SUBNET,
    VM_CREATE,
    VM_LIST,
    AddAddress,
    CreateVm,
)
from atoll.identity.authority import Authority
from atoll.identity.tls import client_context
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VmSpec

TITLE = "API reads over mTLS"
ROUNDS = 5
SECONDS = 3.0
CONNECTIONS = 8
VMS = 20
BOUND = 0.7
SUBNET = Subnet(id="default", cidr="10.99.0.0/24", gateway="10.99.0.1")
OURS, BARE = "Hypervisor", "bare aiohttp handler"
PER_CPU = "per second of its own CPU"
SERVER = Path(__file__).with_name("reads_server.py")


class Server:
    """A server process, pinned to a core."""

    def __init__(self, process: subprocess.Popen[str], context: ssl.SSLContext) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline() or 0)
        if not self.port:
            raise RuntimeError(f"the server ended at its start with status {process.wait()}")
        self._pid = process.pid
        self._context = context
        self.per_cpu_s: list[float] = []
        self.busy: list[float] = []

    def body(self) -> bytes:
        return reads_load.fetch(self.port, VM_LIST.path, self._context)

    def reads_per_s(self) -> float:
        reads = reads_load.load(
            self.port,
            VM_LIST.path,
            self._context,
            connections=CONNECTIONS,
            seconds=SECONDS,
            cpu_s=self._cpu_s,
        )
        self.per_cpu_s.append(reads.replies / reads.cpu_s)
        self.busy.append(reads.cpu_s / reads.seconds)
        return reads.replies / reads.seconds

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure() -> Findings:
    with tempfile.TemporaryDirectory(prefix="atoll-bench-reads-") as name, pinned() as server_core:
        directory = Path(name)
        context = write_pki(directory)
        with serving("ours", directory, context, server_core) as ours:
            fill(ours.port, context)
            body = ours.body()
            if len(json.loads(body)) != VMS:
                raise RuntimeError(f"expected {VMS} records, not {body[:200]!r}")
            (directory / "vms.json").write_bytes(body)
            with serving("bare", directory, context, server_core) as bare:
                if bare.body() != body:
                    raise RuntimeError("the two servers answer with different bytes")
                contestants: dict[str, Callable[[], float]] = {
                    BARE: bare.reads_per_s,
                    OURS: ours.reads_per_s,
                }
                used, began = own_cpu_s(), time.monotonic()
                taken = alternate(ROUNDS, contestants, say)
                load_busy = (own_cpu_s() - used) / (time.monotonic() - began)
        rate = compared(taken[OURS], taken[BARE])
        per_cpu = compared(
            series(f"{OURS}, {PER_CPU}", ours.per_cpu_s), series(f"{BARE}, {PER_CPU}", bare.per_cpu_s)
        )
        return Findings(
            (rate, per_cpu),
            notes=(
                f"GET {VM_LIST.path}: {VMS} records in {len(body)} bytes, encoded for each request; "
                f"{CONNECTIONS} connections kept open, {SECONDS:g} s a round, uvloop on both.",
                f"CPU in use: {OURS} {median(ours.busy):.0%}, {BARE} {median(bare.busy):.0%}, "
                f"load {load_busy:.0%} of a core each. Where a server is well below 100 %, others had "
                "its core, and the rates per second of its own CPU say more.",
                "Server and load have a core each."
                if server_core is not None
                else "Server and load share the one core that there is.",
            ),
        )


def compared(ours: Series, bare: Series) -> Figure:
    target = at_least("at least 0.7 of the bare handler's rate", ours.median / bare.median, BOUND)
    return Figure(ours.name, "requests/s", ours, bare, target)


def fill(port: int, context: ssl.SSLContext) -> None:
    """A subnet, addresses and VMs, made over the wire as a user would."""
    with Client([(reads_load.HOST, port)], context) as client:
        client.call(NODE_ADD_SUBNET, body=SUBNET)
        ips = [f"10.99.0.{number + 2}" for number in range(VMS)]
        pool = tuple(Address(ip, mac_for(ip)) for ip in ips)
        client.call(NODE_ADD_ADDRESS, body=AddAddress(SUBNET.id, pool))
        for number in range(VMS):
            spec = VmSpec(name=f"web-{number:02}", image=IMAGE, driver="sim", tags={"tier": "front"})
            for _ in client.stream(VM_CREATE, body=CreateVm(spec, user_data=b"#!/bin/sh\n")):
                pass


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write_pki(directory: Path) -> ssl.SSLContext:
    """A CA with its list, the servers' certificate, and a client that has one of its own."""
    authority = Authority.create(directory / "ca", "Bench CA")
    issued = {"server": authority.issue_server(["127.0.0.1"]), "user": authority.issue_user(USER)}
    for name, credential in issued.items():
        (directory / f"{name}.pem").write_bytes(credential.cert_pem)
        (directory / f"{name}.key").write_bytes(credential.key_pem)
    (directory / "ca.pem").write_bytes(authority.cert_pem)
    (directory / "crl.pem").write_bytes(authority.crl_path.read_bytes())
    return client_context(directory / "ca.pem", directory / "user.pem", directory / "user.key")


@contextmanager
def pinned() -> Iterator[int | None]:
    """Keeps this process, which makes the load, on one core; gives another one for the servers."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        yield None
        return
    server_core, load_core = sorted(cores)[:2]
    os.sched_setaffinity(0, {load_core})
    try:
        yield server_core
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def serving(kind: str, directory: Path, context: ssl.SSLContext, core: int | None) -> Iterator[Server]:
    command = [sys.executable, str(SERVER), kind, str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield Server(process, context)
    finally:
        process.kill()
        process.communicate()
