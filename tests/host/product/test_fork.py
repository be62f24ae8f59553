"""VMs that begin as copies: of a template, and out of the hot pool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.plan.firewall import link_for
from atoll.system import cgroups, namespaces, processes
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.conftest import Cli

FORKS = 12
DEADLINE_S = 60.0
SMALL = ("--cpus", "0.04")

# The guest's own randomness as programs see it, its keys, and what its kernel shows of itself.
SECRETS = """#!/bin/sh
{
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo
    cat /proc/sys/kernel/random/uuid
    cat /proc/sys/kernel/random/boot_id
    cat /etc/machine-id
} > /run/secrets
echo "secrets: $(tr '\\n' ' ' < /run/secrets)"
"""


def wait_until(true: Any, complaint: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < until, complaint
        time.sleep(0.02)


def templates(cloud: Cli) -> list[Path]:
    return list((cloud.directory / "node" / "templates").glob("*/template.json"))


@pytest.fixture(scope="module")
def forking(fresh_cloud: Cli) -> Cli:
    """A cloud with a template: its first VM booted."""
    first = fresh_cloud.create("first", *SMALL)
    assert first["started_by"] == "cold"
    wait_until(lambda: templates(fresh_cloud), "no template was made")
    return fresh_cloud


def memory_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) // 1024 for name, rest in (line.split(":") for line in lines)}


def test_many_forks_are_all_different_and_none_is_dear(forking: Cli, tmp_path: Path) -> None:
    script = tmp_path / "user-data"
    script.write_text(SECRETS)

    def make(number: int) -> tuple[dict[str, Any], float]:
        began = time.monotonic()
        words = (f"fork-{number}", "--cpus", "0.15", "--user-data", str(script))
        return forking.create(*words), time.monotonic() - began

    with ThreadPoolExecutor(4) as several:
        made = list(several.map(make, range(FORKS)))
    vms = [vm for vm, _ in made]

    assert {vm["started_by"] for vm in vms} == {"fork"}
    said = []
    for vm, took_s in made:
        before = time.time()
        said.append(forking.ask(vm["ip"]))
        # It is told the time once while it is made. That of the template stands still.
        assert before - took_s < said[-1]["clock_s"] < time.time() + 1
    for own in ("ip", "mac", "hostname", "instance_id", "boot_id", "machine_id", "random"):
        assert len({one[own] for one in said} | {forking.ask(first_ip(forking))[own]}) == FORKS + 1, own
    for vm, one in zip(vms, said, strict=True):
        assert (one["ip"], one["mac"], one["hostname"], one["instance_id"]) == (
            vm["ip"],
            vm["mac"],
            vm["name"],
            vm["instance_id"],
        )
    secrets = [word for vm in vms for word in secrets_of(forking, vm["name"])]
    assert len(secrets) == len(set(secrets)) == 4 * FORKS
    shares = [memory_of(forking.qemu(vm["ip"]))["Pss"] for vm in vms]
    assert max(shares) < 50, shares
    forking.destroy(*(vm["name"] for vm in vms))


def first_ip(cloud: Cli) -> str:
    ip: str = cloud.show("first")["ip"]
    return ip


def secrets_of(cloud: Cli, name: str) -> list[str]:
    """What its script found."""
    found: list[str] = []

    def written() -> bool:
        for line in cloud("vm", "log", name).stdout.splitlines():
            if line.startswith("secrets: "):
                found.extend(line.split()[1:])
        return bool(found)

    wait_until(written, f"{name} wrote no secrets")
    return found


def test_a_fork_cannot_change_what_others_are_copied_from(forking: Cli) -> None:
    ip = forking.create("curious", *SMALL)["ip"]
    opened = Path(f"/proc/{forking.qemu(ip)}/fd")
    memory = [entry for entry in opened.iterdir() if "memfd:" in str(entry.readlink())]
    assert memory

    for ram in memory:
        with pytest.raises(PermissionError), ram.open("r+b", buffering=0) as file:
            file.write(b"\0")
    forking.destroy("curious")


def test_a_fork_lives_as_any_other_vm(forking: Cli) -> None:
    vm = forking.create("lively", "--cpus", "1")
    before = forking.ask(vm["ip"])
    machine = forking.qemu(vm["ip"])

    # Its agent dies, and the next one finds it, and its template.
    forking.kill_agent()
    assert forking.ask(vm["ip"])["boot_id"] == before["boot_id"]
    forking("up")
    assert forking.qemu(vm["ip"]) == machine
    assert forking.show("lively")["state"] == "running"

    # The guest reboots itself: in the same machine, by booting.
    with forking.shell("lively") as shell:
        # Its IPv6 address is made of its own MAC, and none of the template's is left.
        last = "".join(vm["mac"].split(":")[3:])
        assert [line.split()[0][-6:] for line in if_inet6(shell)] == [last]
        shell.begin("reboot -f")
        wait_until(lambda: rebooted(forking, vm["ip"], before["boot_id"]), "it does not come back")
    again = forking.ask(vm["ip"])
    assert (again["mac"], again["instance_id"], again["machine_id"]) == (
        before["mac"],
        before["instance_id"],
        before["machine_id"],
    )
    assert forking.qemu(vm["ip"]) == machine

    # It is stopped and started: as a fork again, and somebody new in all but name.
    forking("vm", "stop", "lively")
    forking("vm", "start", "lively", "--wait-for", "port:80")
    assert forking.show("lively")["started_by"] == "fork"
    assert forking.ask(vm["ip"])["boot_id"] not in (before["boot_id"], again["boot_id"])
    forking.destroy("lively")


def if_inet6(shell: Any) -> list[str]:
    """The addresses of its interface, once there are any."""
    found: list[str] = []

    def there() -> bool:
        found.extend(line for line in shell.run("cat /proc/net/if_inet6").splitlines() if "eth0" in line)
        return bool(found)

    wait_until(there, "it has no IPv6 address")
    return found


def rebooted(cloud: Cli, ip: str, boot_id: str) -> bool:
    try:
        return bool(cloud.ask(ip, timeout=2)["boot_id"] != boot_id)
    except OSError:
        return False


def test_a_create_that_was_killed_while_it_forked_leaves_nothing(forking: Cli) -> None:
    ip: str = forking.json("node", "show")["pools"][0]["free"][0]["ip"]
    forking.end_keeper()
    agent = forking.status()["pid"]
    words = ("vm", "create", "--name", "half", "--image", "appliance", *SMALL)
    with forking.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        try:
            wait_until(lambda: processes.processes_in(forking.group(ip)), "nothing runs")
            os.kill(agent, signal.SIGKILL)
            assert command.wait(DEADLINE_S) == 7
        finally:
            command.kill()
    assert not json.loads(forking.record(ip).read_text())["committed"]
    forking("up")
    assert traces_of(forking, ip) == []


def traces_of(cloud: Cli, ip: str) -> list[str]:
    """All that there is of an address on this host."""
    found = [str(path) for path in (cloud.directory / "node").glob(f"*/{ip}*")]
    found += [str(path.parent) for path in cgroups.join_paths(cloud.group(ip)) if path.parent.exists()]
    with Links(cloud.namespace) as links:
        found += [link for link in links.names() if link == link_for(ip)]

    def inside() -> list[str]:
        neighbours = lines("ip", "neighbour", "show", "nud", "permanent")
        rules = [line for line in lines("nft", "list", "ruleset") if link_for(ip) in line]
        return [line for line in neighbours if line.startswith(f"{ip} ")] + rules

    return found + namespaces.inside(cloud.namespace, inside)


def lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


def test_a_template_whose_making_was_killed_is_made_anew(empty_cloud: Cli) -> None:
    cloud = empty_cloud
    cloud("up")
    cloud.create("first", *SMALL)
    group = cloud.group("template")
    wait_until(lambda: processes.processes_in(group), "no template is being made")
    cloud.kill_agent()
    assert list((cloud.directory / "node" / "templates").iterdir())
    cloud("up")
    assert processes.processes_in(group) == ()
    assert list((cloud.directory / "node" / "templates").iterdir()) == []
    cloud("vm", "stop", "first")
    cloud("vm", "start", "first", "--wait-for", "port:80")
    wait_until(lambda: templates(cloud), "no template was made")
    assert cloud.create("second", *SMALL)["started_by"] == "fork"


# --- the hot pool


def members(cloud: Cli) -> list[str]:
    """The addresses at which something runs that is no VM."""
    groups = cgroups.children(f"atoll/{cloud.facts['id']}/qemu")
    return sorted(ip for ip in groups if ip != "template" and not cloud.record(ip).exists())


def parked(cloud: Cli, count: int) -> bool:
    """Whether there are so many members, and all have come to the end of their rehearsal."""
    there = members(cloud)
    logs = [cloud.directory / "node" / "vms" / ip / "console.log" for ip in there]
    return len(there) == count and all(log.exists() and b"is open" in log.read_bytes() for log in logs)


@pytest.fixture(scope="module")
def pooling(forking: Cli) -> Iterator[Cli]:
    """The same cloud, with an agent that pools."""
    forking("up", "--hot-pool", "2")
    yield forking
    forking("up", "--hot-pool", "0")
    assert members(forking) == []


def test_a_vm_out_of_the_pool_is_somebody_of_its_own(pooling: Cli, tmp_path: Path) -> None:
    script = tmp_path / "user-data"
    script.write_text(SECRETS)
    asked = pooling.create("asked", "--user-data", str(script))
    wait_until(lambda: parked(pooling, 1), "no member was made")
    assert pooling.names() == {"first", "asked"}
    (ip,) = members(pooling)
    wait_until(lambda: not pooling.answers(ip), "a member that waits has a network")

    quick = pooling.create("quick", "--user-data", str(script))

    assert (quick["started_by"], quick["ip"]) == ("pool", ip)
    assert pooling("vm", "exec", "quick", "--", "hostname").stdout == "quick\n"
    said = [pooling.ask(vm["ip"]) for vm in (asked, quick)]
    assert (said[1]["hostname"], said[1]["instance_id"]) == ("quick", quick["instance_id"])
    for own in ("boot_id", "machine_id", "random"):
        assert said[0][own] != said[1][own]
    assert not set(secrets_of(pooling, "asked")) & set(secrets_of(pooling, "quick"))
    with pooling.shell("quick") as shell:
        assert "quick" in shell.run("hostname")
    pooling.destroy("asked", "quick")


def test_members_of_an_agent_that_was_killed_are_ended_by_the_next_one(pooling: Cli) -> None:
    pooling.create("asks", *SMALL)
    wait_until(lambda: members(pooling), "no member was made")
    left = members(pooling)

    pooling.kill_agent()
    assert [ip for ip in left if processes.processes_in(pooling.group(ip))] == left
    pooling("up")

    for ip in left:
        assert traces_of(pooling, ip) == []
    assert pooling.ask(pooling.show("asks")["ip"])["hostname"] == "asks"
    pooling.destroy("asks")


def test_a_fork_that_was_suspended_to_disk_goes_on(forking: Cli) -> None:
    vm = forking.create("rested", *SMALL)
    assert vm["started_by"] == "fork"
    forking("vm", "exec", "rested", "--", "sh", "-c", "echo here > /tmp/mark")
    forking("vm", "suspend", "rested", "--to-disk")
    assert not cgroups.members(forking.group(vm["ip"]))
    forking("vm", "resume", "rested")
    assert forking("vm", "exec", "rested", "--", "cat", "/tmp/mark").stdout == "here\n"
    forking.destroy("rested")
