"""Machines that are not VMs: their leases, what they boot from; and IPv6, for them and for VMs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.host.conftest import new_cloud, wait_until

from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.ipv6 import ETHERTYPE_IPV6, ICMPV6
from atoll.system import namespaces
from atoll.system.links import Links, open_tap

if TYPE_CHECKING:
    from tests.host.conftest import Cli

RACK = ("10.99.0.9", "52:54:00:99:00:09")
SHELF = ("10.88.0.9", "52:54:00:88:00:09")


@pytest.fixture(scope="module")
def wide_cloud(images: Path) -> Iterator[Cli]:
    """A cloud with IPv6, a subnet for machines on a bridge of its own, and one on a bridge that was there."""
    with new_cloud(images) as cli:
        cli("up", "--ipv6")
        with Links(cli.namespace) as links:
            links.ensure_bridge("lan0", "02:00:00:00:88:01", 1500, ["10.88.0.1/24"])
        metal = ["--service-ip", "10.99.0.2", "--cidr6", "fd99:1::/64"]
        cli("subnet", "add", "metal", "10.99.0.0/24", "--no-pool", *metal)
        lan = ("--bridge", "lan0", "--service-ip", "10.88.0.2", "--no-pool")
        cli("subnet", "add", "lan", "10.88.0.0/24", *lan)
        rack = ["--subnet", "metal", "--name", "rack1-7", "--image", "appliance"]
        cli("node", "add-lease", *RACK, *rack)
        cli("node", "add-lease", *SHELF, "--subnet", "lan", "--name", "shelf")
        yield cli


@pytest.fixture
def rack(wide_cloud: Cli, tmp_path: Path) -> Iterator[Path]:
    """A machine without a disk that was switched on, behind a port of the bridge: the log of its console."""
    log = tmp_path / "serial"
    tap = open_tap("rack0", "br-metal", 1500, wide_cloud.namespace)
    process = subprocess.Popen(
        [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg",
            "-machine", "q35,graphics=off", "-m", "256", "-netdev", f"tap,id=net0,fd={tap}",
            "-device", f"virtio-net-pci,netdev=net0,mac={RACK[1]}",  # its ROM is iPXE
            "-serial", f"file:{log}",
        ],
        pass_fds=[tap],
    )  # fmt: skip
    os.close(tap)
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def leases(cloud: Cli) -> dict[str, Any]:
    return {lease["ip"]: lease for lease in cloud.json("lease", "list")}


def fetch(cloud: Cli, url: str) -> dict[str, Any]:
    """A page, read from inside the cloud."""

    def read() -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=2) as reply:
            page: dict[str, Any] = json.load(reply)
            return page

    return namespaces.inside(cloud.namespace, read)


def answers(cloud: Cli, url: str) -> bool:
    try:
        return bool(fetch(cloud, url))
    except OSError:
        return False


def test_a_machine_without_a_disk_boots_its_image_over_the_network(wide_cloud: Cli, rack: Path) -> None:
    assert leases(wide_cloud)[RACK[0]]["state"] == "unused"
    with wide_cloud.start("lease", "list", "--follow", "-o", "json", stdout=subprocess.PIPE) as following:
        url = f"http://{RACK[0]}/"
        try:
            wait_until(lambda: answers(wide_cloud, url), lambda: rack.read_text(errors="replace"), 90, 0.25)
        finally:
            following.kill()
        assert following.stdout is not None
        told = [json.loads(line) for line in following.stdout.read().splitlines()]
    page = fetch(wide_cloud, url)
    assert (page["hostname"], page["ip"], page["mac"]) == ("rack1-7", *RACK)
    serial = rack.read_text(errors="replace")
    assert "tftp://10.99.0.2/boot.ipxe... ok" in serial
    assert "bound to 10.99.0.9 as rack1-7" in serial
    states = [lease["state"] for lease in told if lease["ip"] == RACK[0]]
    assert states[0] == "unused"
    assert states[-1] == "bound"
    assert leases(wide_cloud)[RACK[0]]["state"] == "bound"


@contextlib.contextmanager
def machine(cloud: Cli, mac: str) -> Iterator[str]:
    """The namespace of a machine behind a port of the bridge that was there."""
    name = f"xshelf{os.getpid()}"
    namespaces.ensure(name)
    try:
        with Links(cloud.namespace) as links:
            links.ensure_veth("port7", "eth0", name, peer_mac=mac, master="lan0")
        yield name
    finally:
        namespaces.delete(name)
        with Links(cloud.namespace) as links:
            links.delete("port7")


def busybox(namespace: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["ip", "netns", "exec", namespace, "busybox", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_machine_behind_a_bridge_that_was_there_gets_its_lease_and_its_own_file(
    wide_cloud: Cli, tmp_path: Path
) -> None:
    own = wide_cloud.directory / "node" / "tftp" / SHELF[1]
    own.mkdir(parents=True)
    (own / "hello").write_text("hello, shelf")
    with machine(wide_cloud, SHELF[1]) as here:
        asked = busybox(here, "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "5", "-s", "/bin/true")
        assert f"lease of {SHELF[0]} obtained from 10.88.0.2" in asked.stderr
        with Links(here) as links:
            links.add_address("eth0", f"{SHELF[0]}/24")
        got = busybox(here, "tftp", "-g", "-r", "hello", "-l", str(tmp_path / "hello"), "10.88.0.2")
        assert got.returncode == 0, got.stderr
        over_http = busybox(here, "wget", "-q", "-O", "-", "http://10.88.0.2:6969/hello")
    assert (tmp_path / "hello").read_text() == over_http.stdout == "hello, shelf"
    assert leases(wide_cloud)[SHELF[0]]["holder"] == "machine"


def test_a_machine_without_a_lease_gets_nothing(wide_cloud: Cli) -> None:
    with machine(wide_cloud, "52:54:00:88:00:77") as here:
        asked = busybox(
            here, "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "2", "-T", "1", "-s", "/bin/true"
        )
        assert "no lease, failing" in asked.stderr


def test_a_lease_that_clashes_is_refused_and_one_that_is_gone_can_be_taken_away(wide_cloud: Cli) -> None:
    clash = wide_cloud.refused(
        "node", "add-lease", RACK[0], "52:54:00:99:00:10", "--subnet", "metal", "--name", "x"
    )
    assert clash.status == 4
    assert "rack1-7" in clash.brief
    spare = "10.99.0.50"
    wide_cloud("node", "add-lease", spare, "52:54:00:99:00:50", "--subnet", "metal", "--name", "spare")
    assert spare in leases(wide_cloud)
    wide_cloud("node", "delete-lease", spare, spare)
    assert spare not in leases(wide_cloud)


@pytest.fixture(scope="module")
def guest(wide_cloud: Cli) -> dict[str, Any]:
    """A VM that answers over IPv6, after an agent that was killed while it ran."""
    vm = wide_cloud.create("six")
    wide_cloud.kill_agent()
    wide_cloud("up")
    return vm


def test_a_vm_answers_over_ipv6_from_the_host(wide_cloud: Cli, guest: dict[str, Any]) -> None:
    assert guest["ip6"].startswith(wide_cloud.facts["subnet"]["cidr6"].removesuffix("::/64"))

    def reached() -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://[{guest['ip6']}]/", timeout=2) as page,
        ):
            return bool(json.load(page)["hostname"] == "six")
        return False

    wait_until(reached, lambda: f"nothing at {guest['ip6']}", 30)
    # What was given to the node outlived the agent.
    assert {RACK[0], SHELF[0], guest["ip"]} <= leases(wide_cloud).keys()


def test_a_guest_cannot_send_from_an_ipv6_address_that_is_not_its_own(
    wide_cloud: Cli, guest: dict[str, Any]
) -> None:
    gateway = wide_cloud.facts["subnet"]["gateway6"]
    forged = gateway.removesuffix("1") + "bad"
    with wide_cloud.shell("six") as shell, watching(wide_cloud, guest["mac"]) as seen:
        shell.run("echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad")
        shell.run(f"ip -6 address add {forged}/64 dev eth0")
        shell.run(f"ping6 -c 2 -W 1 -I {guest['ip6']} {gateway}")
        forged_ping = shell.run(f"ping6 -c 2 -W 1 -I {forged} {gateway}")
        sources = seen()
    assert "2 packets transmitted, 0 packets received" in forged_ping
    assert guest["ip6"] in sources
    assert forged not in sources


@contextlib.contextmanager
def watching(cloud: Cli, mac: str) -> Iterator[Any]:
    """Whose ICMPv6 comes into the bridge from a guest: a function that gives the source addresses so far."""
    wire = namespaces.socket_in(cloud.namespace, socket.AF_PACKET, socket.SOCK_RAW)
    with wire:
        wire.bind(("br-default", ETHERTYPE_IPV6))
        wire.setblocking(False)

        def seen() -> set[str]:
            sources = set()
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = packets6.parse(wire.recv(4096))
                    if packet.source_mac == mac and packet.protocol == ICMPV6:
                        sources.add(packet.source_ip)
            return sources

        yield seen
