"""The agent dies at any moment: VMs run on, what was acknowledged stays, what was not leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.plan.firewall import link_for
from atoll.system import cgroups, namespaces, processes
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.conftest import Cli

# Powers off when somebody connects: the one thing that a guest can be told without its agent.
DOZER = "#!/bin/sh\nnc -l -p 9999\npoweroff -f\n"
DEADLINE_S = 30


class Pings:
    """Echo requests to a VM, twenty a second, and how many were never answered."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._sent: set[int] = set()
        self._came: set[int] = set()
        self._over = threading.Event()

    @property
    def lost(self) -> int:
        return len(self._sent - self._came)

    def run(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as wire:
            wire.settimeout(0.05)
            wire.connect((self._ip, 0))
            while not self._over.is_set():
                number = len(self._sent)
                self._sent.add(number)
                wire.send(_echo(number))
                self._receive(wire)
            until = time.monotonic() + DEADLINE_S
            while self.lost and time.monotonic() < until:
                self._receive(wire)

    def end(self) -> None:
        self._over.set()

    def _receive(self, wire: socket.socket) -> None:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            try:
                packet = wire.recv(2048)
            except TimeoutError:
                return
            kind, _, _, _, number = struct.unpack_from("!BBHHH", packet, 20)
            if kind == 0:
                self._came.add(number)


def _echo(number: int) -> bytes:
    checksum = 0xFFFF - (0x0800 + number) % 0xFFFF
    return struct.pack("!BBHHH", 8, 0, checksum, 0, number)


@contextmanager
def pinged(ip: str) -> Iterator[Pings]:
    """While inside, a VM is asked whether it is there, all the time."""
    pings = Pings(ip)
    thread = threading.Thread(target=pings.run)
    thread.start()
    try:
        yield pings
    finally:
        pings.end()
        thread.join()


@pytest.fixture(scope="module")
def three(fresh_cloud: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Three VMs that run, by name; the one called dozer powers off when it is told to."""
    script = tmp_path_factory.mktemp("dozer") / "user-data"
    script.write_text(DOZER)
    commands = [
        fresh_cloud.start(
            "vm", "create", "--name", name, "--image", "appliance", "--user-data", str(script),
            stdout=subprocess.DEVNULL,
        )
        for name in ("steady", "dozer", "victim")
    ]  # fmt: skip
    assert [command.wait(120) for command in commands] == [0, 0, 0]
    return {vm["name"]: vm for vm in fresh_cloud.json("vm", "list")}


def traces_of(cloud: Cli, ip: str) -> list[str]:
    """All that there is of a VM on this host."""
    found = [str(path) for path in (cloud.directory / "node").glob(f"*/{ip}*")]
    found += [str(path.parent) for path in cgroups.join_paths(cloud.group(ip)) if path.parent.exists()]
    with Links(cloud.namespace) as links:
        found += [link for link in links.names() if link == link_for(ip)]
    here = namespaces.inside(cloud.namespace, lambda: _lines("ip", "neighbour", "show", "nud", "permanent"))
    found += [line for line in here if line.startswith(f"{ip} ")]
    return found + [line for line in rules(cloud) if link_for(ip) in line]


def rules(cloud: Cli) -> list[str]:
    return namespaces.inside(cloud.namespace, lambda: _lines("nft", "list", "ruleset"))


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


def kill_when(cloud: Cli, moment: Callable[[], bool], *words: str) -> None:
    """Run a command, and kill the agent under it as soon as the moment has come."""
    cloud.end_keeper()
    agent = cloud.status()["pid"]
    command = cloud.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + DEADLINE_S
        while not moment():
            assert time.monotonic() < until, "the moment never came"
        os.kill(agent, signal.SIGKILL)
        assert command.wait(DEADLINE_S) == 7
    finally:
        command.kill()
        command.wait()


def free_addresses(cloud: Cli) -> list[str]:
    return [address["ip"] for address in cloud.json("node", "show")["pools"][0]["free"]]


def test_vms_run_on_without_an_agent_and_the_next_one_finds_them(
    fresh_cloud: Cli, three: dict[str, dict[str, Any]]
) -> None:
    cloud = fresh_cloud
    steady, dozer, victim = (three[name]["ip"] for name in ("steady", "dozer", "victim"))
    machine, boot = cloud.qemu(steady), cloud.ask(steady)["boot_id"]
    with pinged(steady) as pings:
        cloud.kill_agent()
        assert [cloud.ask(ip)["ip"] for ip in (steady, dozer, victim)] == [steady, dozer, victim]
        assert cloud.refused("vm", "list").status == 7
        socket.create_connection((dozer, 9999), timeout=10).close()
        os.kill(cloud.qemu(victim), signal.SIGKILL)
        while cloud.answers(dozer):
            time.sleep(0.1)
        cloud("up")
    assert pings.lost == 0
    listed = {vm["name"]: (vm["ip"], vm["state"], vm["reason"]) for vm in cloud.json("vm", "list")}
    assert listed == {
        "steady": (steady, "running", ""),
        "dozer": (dozer, "stopped", "the guest powered off"),
        "victim": (victim, "crashed", "the machine ended unexpectedly"),
    }
    assert (cloud.qemu(steady), cloud.ask(steady)["boot_id"]) == (machine, boot)


def test_a_vm_that_was_found_again_can_be_stopped_started_and_destroyed(
    fresh_cloud: Cli, three: dict[str, dict[str, Any]]
) -> None:
    cloud, ip = fresh_cloud, three["dozer"]["ip"]
    cloud("vm", "start", "dozer", "--wait-for", "port:80")
    cloud.kill_agent()
    cloud("up")
    assert cloud.json("vm", "stop", "dozer")["reason"] == ""
    cloud("vm", "start", "dozer", "--wait-for", "port:80")
    assert cloud.ask(ip)["hostname"] == "dozer"
    cloud.destroy("dozer")
    assert traces_of(cloud, ip) == []


def test_an_agent_that_was_killed_is_started_again_and_vms_run_on(
    fresh_cloud: Cli, three: dict[str, dict[str, Any]]
) -> None:
    cloud, ip = fresh_cloud, three["steady"]["ip"]
    before, boot = cloud.status(), cloud.ask(ip)["boot_id"]
    with pinged(ip) as pings:
        for _ in range(2):
            killed = cloud.status()["pid"]
            os.kill(killed, signal.SIGKILL)
            until = time.monotonic() + DEADLINE_S
            while (now := cloud.status())["agent"] != "up" or now["pid"] == killed:
                assert time.monotonic() < until, "nobody starts it again"
                time.sleep(0.1)
    assert pings.lost == 0
    assert now["keeper"] == before["keeper"]
    assert (cloud.show("steady")["state"], cloud.ask(ip)["boot_id"]) == ("running", boot)
    assert "atoll.keeper: agent" in (cloud.directory / "agent.log").read_text()


def test_settings_of_the_users_own_stay(fresh_cloud: Cli, three: dict[str, dict[str, Any]]) -> None:
    cloud, ip = fresh_cloud, three["steady"]["ip"]
    boot, settings = cloud.ask(ip)["boot_id"], cloud.directory / "settings.toml"
    settings.write_text("[overcommit]\ncpus = 3\n")
    cloud("up")
    agent = cloud.status()["pid"]
    assert cloud.json("node", "show")["overcommit"]["cpus"] == 3
    cloud("up")
    assert cloud.status()["pid"] == agent
    for text, said in (
        ("hot_pol = 1\n", "hot_pol: there is no such setting"),
        ("hot_pool = [\n", "settings.toml: "),
        ("cgroup = 'x'\n", "is chosen by atoll up"),
    ):
        settings.write_text(text)
        refusal = cloud.refused("up")
        assert (refusal.status, said in refusal.brief) == (2, True), refusal
    assert cloud.status()["pid"] == agent
    settings.unlink()
    cloud("up")
    assert cloud.json("node", "show")["overcommit"]["cpus"] == 1
    assert cloud.ask(ip)["boot_id"] == boot


def test_down_and_up_leave_vms_untouched(fresh_cloud: Cli, three: dict[str, dict[str, Any]]) -> None:
    cloud, ip = fresh_cloud, three["steady"]["ip"]
    machine, boot, before = cloud.qemu(ip), cloud.ask(ip)["boot_id"], cloud.show("steady")
    with pinged(ip) as pings:
        cloud("down")
        status = cloud.status()
        assert (status["agent"], status["pid"], status["keeper"]) == ("down", None, None)
        assert cloud.ask(ip)["boot_id"] == boot
        cloud("up")
    assert pings.lost == 0
    assert (cloud.qemu(ip), cloud.ask(ip)["boot_id"], cloud.show("steady")) == (machine, boot, before)


def _record(cloud: Cli, ip: str) -> bool:
    return cloud.record(ip).exists()


def _group(cloud: Cli, ip: str) -> bool:
    return any(path.exists() for path in cgroups.join_paths(cloud.group(ip)))


def _rules(cloud: Cli, ip: str) -> bool:
    return any(link_for(ip) in line for line in rules(cloud))


def _machine(cloud: Cli, ip: str) -> bool:
    """What waits to become a QEMU ends with its agent."""
    names = []
    for pid in processes.processes_in(cloud.group(ip)):
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/{pid}/comm").read_text())
    return any("qemu" in name for name in names)


@pytest.mark.parametrize("moment", [_record, _group, _rules, _machine])
def test_a_create_that_was_killed_leaves_nothing(
    fresh_cloud: Cli, moment: Callable[[Cli, str], bool]
) -> None:
    cloud = fresh_cloud
    ip = free_addresses(cloud)[0]
    kill_when(cloud, lambda: moment(cloud, ip), "vm", "create", "--name", "half", "--image", "appliance")
    assert moment(cloud, ip), "the agent was killed too late to leave anything"
    assert not json.loads(cloud.record(ip).read_text())["committed"]
    cloud("up")
    assert traces_of(cloud, ip) == []
    assert "half" not in cloud.names()
    assert ip in free_addresses(cloud)


def test_a_destroy_that_was_killed_is_finished(fresh_cloud: Cli) -> None:
    cloud = fresh_cloud
    ip = cloud.create("doomed", "--wait-for", "started")["ip"]
    kill_when(cloud, lambda: _is_going(cloud.record(ip)), "vm", "destroy", "--yes", "doomed")
    assert traces_of(cloud, ip), "the agent was killed too late to leave anything"
    cloud("up")
    assert traces_of(cloud, ip) == []
    assert "doomed" not in cloud.names()


def _is_going(record: Path) -> bool:
    return bool(json.loads(record.read_text())["want"] == "gone")
