"""A cloud whose agents are killed, and what there is of it on the host: the invariants that must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.api.client import Client
from atoll.hypervisor.vms.records import Records
from atoll.identity.authority import Authority
from atoll.identity.tls import client_context
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM, VmSpec, VmState
from atoll.plan.firewall import link_for, plugged
from atoll.plan.ids import Ids, Space, block_of
from atoll.system import cgroups, namespaces, processes
from atoll.system.ids import Register
from atoll.system.links import Links
from atoll.system.owners import owner_of
from atoll.system.writer import Writer
from fault_player import LOOPBACK, has_machine
from fault_schedules import ENOSPC, ERROR, KILL, TERM
from role_credentials import a_credential

PORT = 6976
SERVING_S = 30.0
SILENCE_S, SILENCE_PATIENCE_S = 0.5, 10.0
SUBNETS = {"lan": "10.77.0.0/24", "lab": "10.78.0.0/24"}
FIRST = {"lan": 12, "lab": 6}
"""How many addresses the node is given to begin with: few, so that a lost one is missed soon, but enough for every
name there is, and beside them for a hot pool."""

COMMON = {"memory_reserve_mib": 64, "disk_reserve_mib": 64, "templates": 2, "hot_pool": 0, "uplink": None}
"""Little is kept free: whether there is a template or a pool must not hang on what else the machine does. All labs have
the same subnets, so the host has routes to none of them."""
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pool": {"hot_pool": 2},
    "few": {"templates": 1},
    "cold": {"templates": 0},
    "both": {"templates": 0, "drivers": ["qemu", "sim"]},
}
"""What agents are told, by what it is good for."""


@dataclass
class Agent:
    """One agent's process."""

    pid: int
    pidfd: int | None

    def dead(self, timeout_s: float = 0.0) -> bool:
        if self.pidfd is None:
            return True
        if not select.select([self.pidfd], [], [], timeout_s)[0]:
            return False
        os.close(self.pidfd)
        self.pidfd = None
        return True

    def end(self) -> None:
        """SIGTERM: it lets go of everything, and ends."""
        if self.pidfd is not None:
            self._signal(signal.SIGTERM)
            assert self.dead(20), f"agent {self.pid} does not end"

    def kill(self) -> None:
        if self.pidfd is not None:
            self._signal(signal.SIGKILL)
            assert self.dead(10), f"agent {self.pid} outlives SIGKILL"

    def tell_where(self) -> None:
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        assert self.pidfd is not None
        with contextlib.suppress(ProcessLookupError):  # it has just gone by itself
            signal.pidfd_send_signal(self.pidfd, number)


@dataclass
class Tally:
    """What was done to the agents, for docs/reliability.md."""

    schedules: int = 0
    agents: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """Agents that ended themselves, by the step; the same for the other kinds of faults."""
    stops: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    full_disks: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    recoveries: int = 0
    slowest_recovery_s: float = 0.0
    seconds: float = 0.0

    def strike(self, step: str, kind: str) -> None:
        counters = {KILL: self.kills, TERM: self.stops, ERROR: self.errors, ENOSPC: self.full_disks}
        counters[kind][step] += 1


class Lab:
    """A node of one kind of machine. `agent` is the one that runs now, if one does."""

    def __init__(self, cloud: Any, kind: str, more: dict[str, Any] | None = None) -> None:
        self._more = more or {}
        self.cloud = cloud
        self.kind = kind
        self.tally = Tally()
        self.state: Path = cloud.directory / "node"
        self.log: Path = cloud.directory / "faults.log"
        self._nursery: subprocess.Popen[str] | None = None
        self._agent: Agent | None = None
        self._images = 0
        client = cloud.directory / "client"
        self._tls = client_context(client / "ca.pem", client / "user.pem", client / "user.key")
        self.given: dict[str, set[str]] = {subnet: set() for subnet in SUBNETS}
        self.credential = a_credential(Authority.open(cloud.directory / "pki"))
        """One of role web, for VMs to be created with. Nobody answers for the issuer that would take it."""

    # --- agents

    @contextlib.contextmanager
    def open(self) -> Iterator[Lab]:
        """With nothing in it but two subnets and a few addresses."""
        self._write_configs()
        program = [sys.executable, str(Path(__file__).with_name("nursery.py"))]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
            self._nursery = nursery
            try:
                self._furnish()
                yield self
            finally:
                if self._agent is not None:
                    self._agent.kill()
                assert nursery.stdin is not None
                nursery.stdin.close()

    def start(self, fault: str = "", config: str = "plain") -> Agent:
        """A new agent with this fault in it; the one before it is gone."""
        assert self._agent is None or self._agent.dead()
        nursery = self._nursery
        assert nursery is not None
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(f"{self._config(config)}\t{self.log}\t{fault}\n")
        nursery.stdin.flush()
        pid = int(nursery.stdout.readline())
        try:
            agent = Agent(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            agent = Agent(pid, None)
        self._agent = agent
        return agent

    def serving(self, agent: Agent) -> bool:
        """Whether it came as far as answering."""
        until = time.monotonic() + SERVING_S
        while not agent.dead():
            with contextlib.suppress(OSError):
                socket.create_connection((self.cloud.address, PORT), timeout=5).close()
                return not agent.dead()
            assert time.monotonic() < until, f"the agent does not serve: {self.last_words(agent)}"
            time.sleep(0.005)
        return False

    def recovered(self, config: str = "plain") -> Agent:
        """A new agent without a fault, which serves."""
        began = time.monotonic()
        agent = self.start(config=config)
        assert self.serving(agent), f"the node does not start any more: {self.last_words()}"
        self.tally.recoveries += 1
        self.tally.slowest_recovery_s = max(self.tally.slowest_recovery_s, time.monotonic() - began)
        return agent

    def empty(self) -> None:
        """Nothing of any VM, and no agent."""
        if self._agent is not None:
            self._agent.kill()
        agent = self.recovered("both" if self.kind == "qemu" else "plain")
        with self.client() as client:
            for vm in client.call(api.VM_LIST):
                client.call(api.VM_DESTROY, {"vm": vm.ip})
        agent.kill()
        self.tally = Tally()

    def reset(self) -> None:
        """Empty, whatever state it is in: what a failure left must not be found by the next schedule."""
        if self._agent is not None:
            self._agent.kill()
        for group in cgroups.children(f"atoll/{self.cloud.facts['id']}"):
            cgroups.kill_all(f"atoll/{self.cloud.facts['id']}/{group}")
            cgroups.remove(f"atoll/{self.cloud.facts['id']}/{group}")
        for name in ("vms", "trash", "volumes"):
            for path in (self.state / name).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
        self.forget_network()

    def forget_network(self) -> None:
        """As a reboot of the host does."""
        self._inside("sh", "-c", "nft delete table bridge atoll; ip neighbour flush nud permanent; true")

    def create(
        self,
        client: Client,
        name: str,
        *,
        driver: str = "",
        wait_for: str = "started",
        milli_cpus: int = 20,
    ) -> VM:
        """A VM that has come so far."""
        driver = driver or self.kind
        image, memory_mib = ("tiny", 32) if driver == "sim" else ("appliance", 128)
        spec = VmSpec(name, image, driver=driver, memory_mib=memory_mib, milli_cpus=milli_cpus, subnet="lan")
        *_, last = client.stream(api.VM_CREATE, body=api.CreateVm(spec, b"#!secret", api.Wait(wait_for, 60)))
        vm: VM = last.result
        return vm

    def client(self, timeout_s: float = 30) -> Client:
        return Client([(self.cloud.address, PORT)], self._tls, timeout_s=timeout_s)

    def async_client(self) -> AsyncClient:
        return AsyncClient([(self.cloud.address, PORT)], self._tls, timeout_s=30)

    def last_words(self, hangs: Agent | None = None) -> str:
        """The end of the log; with where each thread of an agent is that hangs."""
        if hangs is not None:
            hangs.tell_where()
            self._await_silence()
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-80 if hangs else -15 :])

    def _await_silence(self) -> None:
        """Until nothing was written to the log for a while: what is said in one go is there whole."""
        until, size = time.monotonic() + SILENCE_PATIENCE_S, -1
        while (now := self.log.stat().st_size) != size and time.monotonic() < until:
            size = now
            time.sleep(SILENCE_S)

    def _config(self, name: str) -> Path:
        return Path(self.cloud.directory / f"faults-{name}.json")

    def _write_configs(self) -> None:
        told = json.loads((self.cloud.directory / "agent.json").read_text())
        issuer = {"url": "https://127.0.0.1:1", "ca": str(self.cloud.directory / "client" / "ca.pem")}
        roles = {"roles": {"issuer": issuer}, "role_callers": {"users": ["web"]}}
        told |= {"drivers": [self.kind], **roles, **COMMON, **self._more}
        for name, more in CONFIGS.items():
            self._config(name).write_text(json.dumps(told | more))
        self.add_images()

    def add_images(self) -> None:
        """Those of simulated machines, new each time: what was added before is replaced."""
        store = ImageStore(self.cloud.directory / "images")
        blank = self.cloud.directory / "blank"
        self._images += 1
        blank.write_bytes(b"%d" % self._images)
        for name, forkable in (("tiny", False), ("twin", True)):
            store.add(
                name,
                kinds=("sim",),
                boot=DirectBoot("kernel", "initrd"),
                files={"kernel": blank, "initrd": blank},
                min_memory_mib=16,
                ready="started",
                forkable=forkable,
            )

    def forget_blocks(self) -> None:
        """Nobody knows any more which user ids are whose: agents have to claim theirs again."""
        shutil.rmtree(self.cloud.ids, ignore_errors=True)

    def add_blocks(self) -> None:
        """More user ids than the node needs."""
        register = Register(self.cloud.ids, owner_of(self.state))
        for _ in range(3):
            register.claim(Space.USERS)

    def _furnish(self) -> None:
        shutil.rmtree(self.state)
        agent = self.recovered()
        with self.client() as client:
            for subnet, cidr in SUBNETS.items():
                gateway = str(ipaddress.IPv4Network(cidr)[1])
                client.call(api.NODE_ADD_SUBNET, body=Subnet(subnet, cidr, gateway))
                for number in range(FIRST[subnet]):
                    self.add_address(client, subnet, number)
        agent.kill()

    def address(self, subnet: str, number: int) -> str:
        return str(ipaddress.IPv4Network(SUBNETS[subnet])[10 + number])

    def add_address(self, client: Client, subnet: str, number: int) -> None:
        ip = self.address(subnet, number)
        client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(subnet, (Address(ip, mac_for(ip)),)))
        self.given[subnet].add(ip)

    # --- what there is

    def check_records(self) -> None:
        """What is listed is on disk, and nothing else is; whatever else is under way."""
        with self.client() as client:
            listed = client.call(api.VM_LIST)
        kept = {ip: json.loads(path.read_text())["vm"] for ip, path in self._records().items()}
        assert {ip: (vm["name"], vm["state"], vm["tags"]) for ip, vm in kept.items()} == {
            vm.ip: (vm.name, vm.state, vm.tags) for vm in listed
        }, "disk and memory differ"

    def _records(self) -> dict[str, Path]:
        return {path.parent.name: path for path in self.state.glob("vms/*/vm.json")}

    def check(self, maybe_given: Set[str] = frozenset()) -> dict[str, VM]:
        """Everything that must hold while nothing is under way; the VMs by name."""
        with self.client() as client:
            listed, node = client.call(api.VM_LIST), client.call(api.NODE_SHOW)
        vms = {vm.name: vm for vm in listed}
        assert len(vms) == len(listed), "two VMs of one name"
        self._check_addresses(listed, node, maybe_given)
        self._check_disk(listed)
        self._check_ids(listed)
        self._check_host(listed)
        self._check_served(node)
        self._check_published(listed)
        return vms

    def _check_published(self, listed: tuple[VM, ...]) -> None:
        """The ports that are open are those that the records say, and there is a publisher if there are some."""
        wanted = {(one.address, one.port) for vm in listed for one in vm.published}
        asked = ["ss", "-Hltn", "src", LOOPBACK]
        lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        found = [line.split()[3].rpartition(":") for line in lines]
        assert {(address, int(port)) for address, _, port in found} == wanted, "ports are left or lost"
        running = processes.processes_in(f"atoll/{self.cloud.facts['id']}/publisher")
        assert len(running) == bool(wanted), f"publishers: {running}"

    def _check_addresses(self, listed: tuple[VM, ...], node: Any, maybe: Set[str]) -> None:
        held = Counter(vm.ip for vm in listed)
        macs = Counter(vm.mac for vm in listed)
        assert all(count == 1 for count in (*held.values(), *macs.values())), f"doubled: {held} {macs}"
        for pool in node.pools:
            subnet = pool.subnet.id
            if subnet not in self.given:
                continue  # one that no VM is in
            free = [address.ip for address in pool.free]
            mine = {vm.ip for vm in listed if vm.subnet == subnet}
            assert len(free) == len(set(free)), f"free twice: {free}"
            assert not mine & set(free), f"free and held: {mine & set(free)}"
            arrived = (mine | set(free)) & maybe
            self.given[subnet] |= arrived
            assert mine | set(free) == self.given[subnet], "given is not free and held"
            assert pool.used == len(mine)

    def _check_disk(self, listed: tuple[VM, ...]) -> None:
        records = self._records()
        assert {path.name for path in (self.state / "vms").iterdir()} == {vm.ip for vm in listed}
        for vm in listed:
            kept = json.loads(records[vm.ip].read_text())["vm"]
            assert (kept["name"], kept["state"], kept["tags"]) == (vm.name, vm.state, vm.tags)
        assert list((self.state / "trash").iterdir()) == [], "something is left in the trash"
        self._check_writes()
        self._check_credentials(listed)
        volumes = {str(path.relative_to(self.state / "volumes")) for path in self.state.glob("volumes/*/*")}
        named = {f"{vm.ip}/{volume.file}" for vm in listed for volume in vm.volumes if volume.store}
        assert volumes == named, "volumes are left or lost"
        self._check_templates()

    def _check_ids(self, listed: tuple[VM, ...]) -> None:
        """Each VM has users of its own, of blocks that are this node's, and runs as them."""
        given = {}
        for vm in listed:
            if vm.state is not VmState.DAMAGED:
                record = json.loads((self.state / "vms" / vm.ip / "vm.json").read_text())
                given[vm.ip] = Ids(**record["ids"])
        assert len(set(given.values())) == len(given), f"two VMs with the same ids: {given}"
        ours = Register(self.cloud.ids, owner_of(self.state)).blocks()
        assert {block_of(ids) for ids in given.values()} <= ours, "ids of a block that is not ours"
        for vm in listed:
            if vm.driver == "qemu" and vm.state is VmState.RUNNING and vm.ip in given:
                status = Path(f"/proc/{self.cloud.qemu(vm.ip)}/status").read_text()
                uids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
                assert uids == [str(given[vm.ip].first)] * 4

    def _check_writes(self) -> None:
        """None is left half done. One may be under way: that the issuer of a VM's role does not answer is noted."""
        until = time.monotonic() + SERVING_S
        while half := [str(path) for path in self.state.rglob(".*.tmp")]:
            assert time.monotonic() < until, f"half a write is left: {half}"
            time.sleep(0.02)

    def _check_credentials(self, listed: tuple[VM, ...]) -> None:
        having = {vm.ip for vm in listed if vm.role_credential_expires_at is not None}
        assert {path.parent.name for path in self.state.glob("vms/*/role-credential")} == having
        store = Records(self.state, Writer()).credentials
        for vm in listed:
            if vm.ip in having:
                assert asyncio.run(store.read(vm)) == self.credential

    def _check_templates(self) -> None:
        """None is half there for long: those that there are may be made or dropped just now."""
        until = time.monotonic() + SERVING_S
        while half := [
            path for path in self.state.glob("templates/*") if not (path / "template.json").exists()
        ]:
            if self._agent is None or self._agent.dead():
                return  # the next one's to tidy up
            assert time.monotonic() < until, f"half a template is left: {half}"
            time.sleep(0.02)

    def _check_host(self, listed: tuple[VM, ...]) -> None:
        there = [vm for vm in listed if has_machine(vm)]
        running = {vm.ip for vm in there}
        links = {link_for(ip) for ip in running}
        assert self.ports() == links, "ports of the firewall do not fit the VMs that run"
        assert self.neighbours() == running, "neighbours do not fit the VMs that run"
        real = {(vm.driver, vm.ip) for vm in there if vm.driver != "sim"}
        root = f"atoll/{self.cloud.facts['id']}"
        groups = {(kind, ip) for kind in cgroups.children(root) for ip in cgroups.children(f"{root}/{kind}")}
        assert groups == real, "cgroups do not fit the VMs that run"
        with Links(self.cloud.namespace) as here:
            taps = {name for name in here.names() if name.startswith("at-")}
        assert taps == {link_for(ip) for _, ip in real}, "taps do not fit the VMs that run"
        for kind, ip in real:
            assert len(processes.processes_in(self.cloud.group(ip, kind))) == 1

    def ports(self) -> set[str]:
        """The links of those that are plugged."""
        listed = self._inside("nft", "-j", "list", "table", "bridge", "atoll")
        return set(plugged(json.loads(listed)["nftables"]))

    def _check_served(self, node: Any) -> None:
        """Every bridge of ours is that of a subnet, and has its servers."""
        wanted = {pool.subnet.bridge_name for pool in node.pools}
        prefix = f"{self.cloud.namespace}-"
        with Links(self.cloud.namespace) as here:
            bridges = {name for name in here.names() if name.startswith("br-")}
        assert bridges == wanted, "bridges do not fit the subnets"
        served = {name.removeprefix(prefix) for name in namespaces.names() if name.startswith(prefix)}
        assert served == wanted, "namespaces of servers do not fit the subnets"

    def neighbours(self) -> set[str]:
        lines = self._inside("ip", "-4", "neighbour", "show", "nud", "permanent").splitlines()
        return {line.split()[0] for line in lines}

    def _inside(self, *command: str) -> str:
        return namespaces.inside(
            self.cloud.namespace,
            lambda: subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout,
        )
