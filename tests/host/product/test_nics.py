"""VMs with interfaces in two networks, and metadata over IPv6, on a cloud of their own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.model.network import METADATA_IP, METADATA_IP6
from atoll.system import namespaces, processes
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.conftest import Cli

STORAGE, STORAGE6 = "10.66.2", "fd66:2::"
DOCUMENT = "/latest/dynamic/instance-identity/document"


@pytest.fixture(scope="module")
def wide(images: Path, making_cloud: Any) -> Iterator[Cli]:
    """A cloud with IPv6, and a second network in it."""
    with making_cloud(images) as cli:
        cli("up", "--ipv6")
        six = ("--cidr6", f"{STORAGE6}/64", "--gateway6", f"{STORAGE6}1", "--mtu", "1400")
        pool = [f"{STORAGE}.{last}" for last in (5, 6, 7)]
        cli("subnet", "add", "storage", f"{STORAGE}.0/24", *six, "--pool", *pool)
        yield cli


def ask_inside(cloud: Cli, ip: str) -> dict[str, Any]:
    """What a VM says to one on its own network: to the router there."""
    return namespaces.inside(cloud.namespace, lambda: cloud.ask(ip))


def test_a_guest_is_reached_at_each_of_its_addresses_and_has_one_way_out(wide: Cli) -> None:
    vm = wide.create("double", "--extra-subnet", "storage", "--cpus", "1")
    (nic,) = vm["nics"]
    assert (nic["subnet"], vm["started_by"]) == ("storage", "cold")
    bound = {vm["ip"]: "bound", nic["ip"]: "bound"}
    with wide.shell("double") as shell:
        routes = shell.run(
            "until ip -o -4 addr show eth1 | grep -q inet; do sleep 0.1; done; ip route; ip -6 route"
        )
        # As what it is it reaches the router there; as anybody else nobody.
        assert " 0% packet loss" in shell.run(f"ping -c 1 -W 5 -I {nic['ip']} {STORAGE}.1")
        forged = f"ip addr add {STORAGE}.99/24 dev eth1; ping -c 2 -W 1 -I {STORAGE}.99 {STORAGE}.1"
        assert "100% packet loss" in shell.run(forged)
        mtu = shell.run("cat /sys/class/net/eth0/mtu /sys/class/net/eth1/mtu")
    assert [line.split()[-1] for line in routes.splitlines() if line.startswith("default via 10.")] == [
        "eth0"
    ]
    assert f"{STORAGE}.0/24 dev eth1" in routes
    assert mtu.split("1500")[1].split()[0] == "1400"
    said = [ask_inside(wide, ip) for ip in bound]
    assert [one["instance_id"] for one in said] == [vm["instance_id"]] * 2
    assert {lease["ip"]: lease["state"] for lease in wide.json("lease", "list")} == bound

    # All of it is found again by an agent that comes after one that was killed.
    wide.kill_agent()
    assert ask_inside(wide, nic["ip"])["instance_id"] == vm["instance_id"]
    wide("up", "--ipv6")
    assert wide.show("double")["nics"] == vm["nics"]
    assert ask_inside(wide, nic["ip"])["instance_id"] == vm["instance_id"]
    (used,) = (
        pool["used"] for pool in wide.json("node", "show")["pools"] if pool["subnet"]["id"] == "storage"
    )
    assert used == 1
    wide.destroy("double")
    ports = subprocess.run(
        ["ip", "netns", "exec", wide.namespace, "nft", "list", "ruleset"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'iifname "at-*"' in ports
    assert ports.count("at-") == 1


def get(namespace: str, target: str, path: str, source: str = "", timeout_s: float = 10) -> tuple[int, str]:
    """A request from a namespace: its status, and what came."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with namespaces.socket_in(namespace, family, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        if source:
            client.bind((source, 0))
        client.connect((target, 80))
        client.sendall(f"GET {path} HTTP/1.0\r\nHost: m\r\n\r\n".encode())
        reply = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    head, _, body = reply.partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_metadata_is_told_over_ipv6_to_who_calls_by_the_wire(wide: Cli) -> None:
    vm = wide.create("six", "--driver", "lxc", "--extra-subnet", "storage", "--no-imdsv2-required")
    (nic,) = vm["nics"]
    members = processes.processes_in(wide.group(vm["ip"], "lxc"))
    # Its root is nobody here, and what keeps it is root.
    inside = namespaces.of_process(
        next(pid for pid in members if Path(f"/proc/{pid}").stat().st_uid >= 65_536)
    )
    with Links(inside) as links:
        for link, ip6 in (("eth0", vm["ip6"]), ("eth1", nic["ip6"])):
            # As the guest's kernel would, a second later: it first asks whether the address is free.
            links.add_address(link, f"{ip6}/64")
        links.ensure_route(f"{METADATA_IP6}/128", link="eth1")
    over_ipv4 = get(inside, METADATA_IP, DOCUMENT)
    assert over_ipv4[0] == 200
    # From the other network it is the same VM.
    assert get(inside, METADATA_IP6, DOCUMENT, nic["ip6"]) == over_ipv4
    with Links(inside) as links:
        # To the router, by which its frames are addressed: they come to us all the same.
        links.ensure_route(f"{METADATA_IP6}/128", via=_router(wide), link="eth0")
    assert get(inside, METADATA_IP6, DOCUMENT, vm["ip6"]) == over_ipv4
    wide.kill_agent()
    wide("up", "--ipv6")
    assert get(inside, METADATA_IP6, DOCUMENT, vm["ip6"]) == over_ipv4
    macs = get(inside, METADATA_IP6, "/latest/meta-data/network/interfaces/macs/", vm["ip6"])
    assert macs[1].split() == sorted([f"{vm['mac']}/", f"{nic['mac']}/"])
    with Links(inside) as links:
        links.add_address("eth0", "fd00:bad::5/64")
    with pytest.raises(TimeoutError):
        get(inside, METADATA_IP6, DOCUMENT, "fd00:bad::5", timeout_s=1)
    wide.destroy("six")


def _router(cloud: Cli) -> str:
    """The address of the first network's router."""
    pools = cloud.json("node", "show")["pools"]
    return next(str(pool["subnet"]["gateway6"]) for pool in pools if pool["subnet"]["id"] == "default")


def test_who_is_no_vm_is_told_nothing_over_ipv6(wide: Cli) -> None:
    stranger = f"{wide.namespace}-guest"
    namespaces.ensure(stranger)
    try:
        with Links(wide.namespace) as outside:
            outside.ensure_veth("stranger", "eth0", stranger, master="br-storage", ipv6=True)
        with Links(stranger) as links:
            links.add_address("eth0", f"{STORAGE6}99/64")
            links.ensure_route(f"{METADATA_IP6}/128", link="eth0")
        assert get(stranger, METADATA_IP6, DOCUMENT) == (404, "not found\n")
    finally:
        namespaces.delete(stranger)


def test_what_the_node_was_given_is_changed_and_taken_back(wide: Cli) -> None:
    added = wide.json("subnet", "add", "spare", "10.66.3.0/24")
    assert [added["free"][index]["ip"] for index in (0, -1)] == ["10.66.3.2", "10.66.3.254"]
    with Links() as host:
        assert ("10.66.3.0/24", wide.address) in {(route.cidr, route.via) for route in host.routes()}
    wide("subnet", "change", "spare", "--domain", "spare.test", "--no-metadata")
    spare = wide.json("subnet", "change", "spare", "--remove", "10.66.3.2-10.66.3.4", "10.66.3.6-10.66.3.254")
    assert ([one["ip"] for one in spare["free"]], spare["subnet"]["domain"]) == (["10.66.3.5"], "spare.test")
    with Links(wide.namespace) as links:
        assert "br-spare" in links.names()
        assert wide.refused("subnet", "delete", "spare").status == 2
        wide("subnet", "delete", "--yes", "spare")
        wide("subnet", "delete", "--yes", "spare")
        assert "br-spare" not in links.names()
    assert not namespaces.exists(f"{wide.namespace}-br-spare")
    with Links() as host:
        assert "10.66.3.0/24" not in {route.cidr for route in host.routes()}
    node = wide.json("node", "set-owners", "--user", "ann")
    assert "ann" in node["owner_users"]
    wide("node", "set-owners")
