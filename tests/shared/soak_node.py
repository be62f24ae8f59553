"""A node whose agents come and go, and all that there is of it on its host: what has to be as it was, afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.identity.authority import Authority
from atoll.identity.tls import client_context
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.vm import VM, VmSpec
from atoll.plan.firewall import link_for
from atoll.serving import audit, event_log
from atoll.system import cgroups, logs, namespaces, processes
from atoll.system.links import Links
from node_labs import PORT, Guest
from vitals import resident_mib

SERVING_S = 30.0
NURSERY = [sys.executable, str(Path(__file__).parents[1] / "host/faults/nursery.py")]
BRIDGE = "br-default"
SIM_IMAGE = "tiny"
MOST_BYTES = {
    "audit.jsonl": (audit.KEPT + 1) * audit.LIMIT_BYTES,
    "events.jsonl": (event_log.KEPT + 1) * event_log.LIMIT_BYTES,
    "soak.log": 2 * (logs.LIMIT + 65536),
}
"""Files that grow on purpose, and how far, with those that they were turned over to: NAME.1, NAME.2, …"""
_OLDER = re.compile(r"(.*/(?:audit\.jsonl|events\.jsonl|soak\.log))\.\d+")
_NUMBERS = re.compile(r"(?<=memfd:)\S+|(?<=:\[)\d+")
_MARKS = re.compile(r'"(?:handle|expires)": \d+,? ?')

Picture = dict[str, Counter[str]]
"""What there is, by its kind. The same thing twice counts."""


class SoakNode:
    """The node of a cloud that is down: its agents are ours, and die with us."""

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self.state: Path = cloud.directory / "node"
        self.log: Path = cloud.directory / "soak.log"
        self._config: Path = cloud.directory / "soak.json"
        self._nursery: subprocess.Popen[str] | None = None
        self._pidfd: int | None = None
        self.pid = 0
        self.faults: list[str] = []
        """What each agent was told to suffer, the last one last."""
        self.unforeseen: list[str] = []
        """What agents that suffered nothing had to log with a traceback."""
        self._log_begins = 0
        self.serving = False
        """Whether the agent that there is has answered, and nobody has sent it a signal."""
        self._authority = Authority.open(cloud.directory / "pki")
        self._write_config()

    def _write_config(self) -> None:
        told = json.loads((self.cloud.directory / "agent.json").read_text())
        told["drivers"] = [*(kind for kind in told["drivers"] if kind != "docker"), "sim"]
        told |= {"memory_reserve_mib": 64, "disk_reserve_mib": 64, "templates": 1, "root_mib": 32}
        told |= {"user_limits": {"calls_per_s": 40, "streams": 8, "launches": 4}}
        self._config.write_text(json.dumps(told))
        blank = self.cloud.directory / "blank"
        blank.write_bytes(b"x")
        ImageStore(self.cloud.directory / "images").add(
            SIM_IMAGE,
            kinds=("sim",),
            boot=DirectBoot("kernel", "initrd"),
            files={"kernel": blank, "initrd": blank},
            min_memory_mib=16,
            ready="started",
        )

    # --- its agents

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Agents come from a process that has all loaded, and die with it; it ends with us, however we end."""
        with subprocess.Popen(NURSERY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self.kill()
                assert nursery.stdin is not None
                nursery.stdin.close()

    async def start(self, fault: str = "") -> bool:
        """A new agent, with this fault in it. Whether it serves; one without a fault does."""
        assert not self.alive()
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self.faults.append(fault)
        self._log_begins = self.log.stat().st_size if self.log.exists() else 0
        self._nursery.stdin.write(f"{self._config}\t{self.log}\t{fault}\n")
        self._nursery.stdin.flush()
        self.pid = int(self._nursery.stdout.readline())
        with contextlib.suppress(ProcessLookupError):  # it has gone already
            self._pidfd = os.pidfd_open(self.pid)
        until = time.monotonic() + SERVING_S
        while not await asyncio.to_thread(self._answers):
            if not self.alive():
                assert fault, f"the node does not start any more: {self.last_words()}"
                return False
            assert time.monotonic() < until, f"the agent does not serve: {self.last_words()}"
            await asyncio.sleep(0.02)
        self.serving = self.alive()
        return self.serving

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.cloud.address, PORT), timeout=1).close()
        except OSError:
            return False
        return True

    def alive(self, timeout_s: float = 0.0) -> bool:
        """Whether there is an agent; if so, whether it still lives after so long."""
        return self._pidfd is not None and not select.select([self._pidfd], [], [], timeout_s)[0]

    def kill(self) -> None:
        self.serving = False
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            assert not self.alive(10), f"agent {self.pid} outlives SIGKILL"
            os.close(self._pidfd)
            self._pidfd = None
            if not self.faults[-1]:
                self.unforeseen += self._tracebacks()

    def served(self) -> int | None:
        """The number of the agent that serves just now."""
        return len(self.faults) if self.serving and self.alive() else None

    def _logged(self, since: int = 0) -> list[str]:
        """The lines of its log from that byte on; all of it, when it was begun anew since then."""
        with self.log.open("rb") as log:
            log.seek(since if since <= self.log.stat().st_size else 0)
            return log.read().decode(errors="replace").splitlines()

    def _tracebacks(self) -> list[str]:
        """Those of the last agent. Their lines are indented."""
        found: list[str] = []
        before = ""
        for line in self._logged(self._log_begins):
            if line.startswith("  Traceback"):
                found.append(before)
            if found and line.startswith("  "):
                found[-1] += f"\n{line}"
            before = line
        return found

    def last_words(self) -> str:
        return "\n".join(self._logged()[-25:])

    def kill_a_machine(self, choice: Any) -> bool:
        """A process of some machine, by SIGKILL. Whether there was one."""
        root = f"atoll/{self.cloud.facts['id']}"
        groups = [f"{root}/{kind}/{ip}" for kind in cgroups.children(root) for ip in _children(root, kind)]
        pids = [pid for group in groups for pid in processes.processes_in(group)]
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(choice.choice(pids), signal.SIGKILL)
            return True
        return False

    # --- whoever calls it

    def client(self, user: str = "") -> AsyncClient:
        """As that user; nobody: as an operator."""
        folder = self._issued(user) if user else self.cloud.directory / "client"
        tls = client_context(self._authority.cert_path, folder / "user.pem", folder / "user.key")
        return AsyncClient([(self.cloud.address, PORT)], tls, timeout_s=30)

    def _issued(self, user: str) -> Path:
        folder = Path(self.cloud.directory.parent / f"of-{user}")
        if not folder.exists():
            folder.mkdir(0o700)
            issued = self._authority.issue_user(user)
            (folder / "user.pem").write_bytes(issued.cert_pem)
            (folder / "user.key").write_bytes(issued.key_pem)
        return folder

    async def guest(self, client: AsyncClient, name: str) -> tuple[VM, Guest]:
        """A VM whose guest is a namespace that knows its address; it goes with the cloud."""
        spec = VmSpec(name, SIM_IMAGE, driver="sim", memory_mib=16, milli_cpus=10)
        vm = await created(client, api.CreateVm(spec, wait=api.Wait("started", 20)))
        guest = Guest(f"{self.cloud.namespace}-g{name}", vm.mac)
        namespaces.ensure(guest.namespace)
        with Links(self.cloud.namespace) as links:
            links.ensure_veth(link_for(vm.ip), "eth0", guest.namespace, peer_mac=vm.mac, master=BRIDGE)
        guest.configure(vm.ip)
        return vm, guest

    # --- what there is of it

    async def picture(self, client: AsyncClient) -> Picture:
        """All of the host that is this node's, and of its agent what can be counted."""
        node = await client.call(api.NODE_SHOW)
        free = Counter(address.ip for pool in node.pools for address in pool.free)
        return {"free addresses": free, **await asyncio.to_thread(self._on_the_host)}

    def _on_the_host(self) -> Picture:
        identity = self.cloud.facts["id"]
        namespaces_of_it = sorted(name for name in namespaces.names() if identity in name)
        return {
            "namespaces": Counter(namespaces_of_it),
            "files": Counter(path for path in _paths(self.cloud.directory) if not _OLDER.fullmatch(path)),
            "user ids": Counter(_paths(self.cloud.ids)),
            "files in /run": Counter(path for path in _paths(Path("/run")) if self._is_mine(path)),
            "mounts": Counter(filter(self._is_mine, _mounts())),
            "loop devices": Counter(filter(self._is_mine, _loops())),
            "cgroups": Counter(_groups(f"atoll/{identity}")),
            "processes": Counter(self._processes()),
            "links": Counter(each for name in namespaces_of_it for each in _links(name)),
            "neighbours": Counter(each for name in namespaces_of_it for each in _neighbours(name)),
            "rules": Counter(each for name in namespaces_of_it for each in _rules(name)),
            "descriptors": Counter(self.descriptors()),
        }

    def _is_mine(self, text: str) -> bool:
        return self.cloud.directory.parent.name in text or self.cloud.facts["id"] in text

    def _processes(self) -> Iterator[str]:
        """Those in its cgroups, and those that its agent has started and that know its directory."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                group = (path / "cgroup").read_text()
                if int(path.name) in (self.pid, os.getpid()):
                    continue
                if f"/atoll/{self.cloud.facts['id']}/" in group or str(self.state) in words:
                    yield words

    def descriptors(self) -> Iterator[str]:
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield _NUMBERS.sub("…", str(path.readlink()))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def resident_mib(self) -> float:
        return resident_mib(self.pid)

    def too_large(self) -> list[str]:
        """Files that grow on purpose, and have grown too far."""
        sizes: Counter[str] = Counter()
        for path in self.cloud.directory.rglob("*"):
            older = _OLDER.fullmatch(str(path))
            name = Path(older[1]).name if older else path.name
            if name in MOST_BYTES:
                sizes[name] += path.stat().st_size
        return [f"{name}: {size} bytes" for name, size in sizes.items() if size > MOST_BYTES[name]]


async def created(client: AsyncClient, request: api.CreateVm) -> VM:
    *_, last = [line async for line in client.stream(api.VM_CREATE, body=request)]
    vm: VM = last.result
    return vm


def differences(before: Picture, after: Picture) -> list[str]:
    """What is more, and what is less, in words. Images that nothing is made of are let go of after a while."""
    found = []
    for kind in before.keys() | after.keys():
        more, less = after[kind] - before[kind], before[kind] - after[kind]
        found += [f"{kind}: {count} more of {thing}" for thing, count in sorted(more.items())]
        found += [
            f"{kind}: {count} less of {thing}"
            for thing, count in sorted(less.items())
            if ".held/" not in thing
        ]
    return found


def _children(root: str, kind: str) -> set[str]:
    try:
        return cgroups.children(f"{root}/{kind}")
    except OSError:
        return set()


def _paths(root: Path) -> Iterator[str]:
    for place, below, within in os.walk(root):
        yield from (os.path.join(place, name) for name in (*below, *within))


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield " ".join(line.split()[3:5])


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            yield path.read_text().strip()


def _groups(group: str) -> Iterator[str]:
    used = (path.parent for path in cgroups.join_paths(group))
    for base in (*used, *(root / group for root in cgroups.other_hierarchies())):
        yield from (place for place, _, _ in os.walk(base))


def _links(namespace: str) -> Iterator[str]:
    with Links(namespace) as links:
        yield from (f"{namespace}: {name}" for name in links.names())


def _neighbours(namespace: str) -> Iterator[str]:
    """Those that somebody has set: others come and go by themselves."""
    for line in _inside(namespace, "ip", "neighbour", "show", "nud", "permanent").splitlines():
        yield f"{namespace}: {line.strip()}"


def _rules(namespace: str) -> Iterator[str]:
    """Every rule and every element of a set, without what only counts or runs out by itself."""
    for entry in json.loads(_inside(namespace, "nft", "-j", "list", "ruleset"))["nftables"]:
        ((kind, what),) = entry.items()
        if kind == "metainfo":
            continue
        elements = [] if "timeout" in what else what.pop("elem", [])
        what.pop("elem", None)
        yield f"{namespace}: {kind} {_MARKS.sub('', json.dumps(what))}"
        yield from (
            f"{namespace}: {what['name']} has {_MARKS.sub('', json.dumps(each))}" for each in elements
        )


def _inside(namespace: str, *command: str) -> str:
    return namespaces.inside(
        namespace,
        lambda: subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout,
    )
