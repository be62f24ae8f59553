"""Three nodes on one LAN, each with a bridge of the same name over a port into it: every VM is its own node's.

vm1 ─ at-… ─┐                ┌─ as-… ═ DHCP, metadata
            └─ br0 (node 1) ─┴─ wire ─┐
vm2 ─ at-… ─── br0 (node 2) ─── wire ─┤ lan ── stranger
vm3 ─ at-… ─── br0 (node 3) ─── wire ─┘
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.query
import pytest

from atoll.api import hypervisor as api
from atoll.errors import TimedOut
from atoll.guestnet.frames import ipv4
from atoll.guestnet.frames.errors import BadPacket
from atoll.model.network import METADATA_IP, Subnet
from atoll.model.vm import VM
from atoll.plan.macs import service_mac
from atoll.system import namespaces
from atoll.system.links import Links, sysctl
from node_labs import Guest, Node, Site, a_site, run
from promtool import complaints

SUBNET = Subnet("lan", "10.50.0.0/24", "10.50.0.1", bridge="br0")
NODES = 3
ETH_P_ALL = 3
ARP_REPLY = bytes.fromhex("0806 0001 0800 06 04 0002")
SHARED = "10.50.0.77"
QUESTIONS = "atoll_dns_questions_total"
CLOSED_S = 3.0
"""Longer than it takes until a port is tried."""
CALLS_IPTABLES = "net/bridge/bridge-nf-call-iptables"


class Lan:
    """The picture above, with one VM on each node."""

    def __init__(self, site: Site, calls_iptables: str) -> None:
        self.namespace = site.namespace("lan")
        with Links(self.namespace) as links:
            links.ensure_bridge("lan", "02:00:00:00:00:01", 1500)
        self.nodes = [self._node(site, number, calls_iptables) for number in range(1, NODES + 1)]
        self.vms: list[VM] = [
            node.create(f"vm{number}", "lan") for number, node in enumerate(self.nodes, start=1)
        ]
        self.guests = [node.guest(vm, "br0") for node, vm in zip(self.nodes, self.vms, strict=True)]
        self.stranger = Guest(site.namespace("stranger"), "52:54:00:00:00:99")
        with Links(self.namespace) as links:
            links.ensure_veth(
                "stranger", "eth0", self.stranger.namespace, peer_mac=self.stranger.mac, master="lan"
            )

    def _node(self, site: Site, number: int, calls_iptables: str) -> Node:
        node = Node(site, f"n{number}", f"10.50.0.{1 + number}")
        with Links(node.namespace) as links:
            links.ensure_bridge("br0", f"02:00:00:00:01:0{number}", 1500)
            links.ensure_veth("wire", f"node{number}", self.namespace, master="br0")
        with Links(self.namespace) as links:
            links.set_master(f"node{number}", "lan")
        if Path("/proc/sys", CALLS_IPTABLES).exists():
            sysctl(CALLS_IPTABLES, calls_iptables, node.namespace)
        node.start()
        node.give(SUBNET, f"10.50.0.{10 * number + 5}")
        return node


class Capture:
    """All frames that come onto the LAN, while it is open."""

    def __init__(self, namespace: str) -> None:
        protocol = socket.htons(ETH_P_ALL)
        self._socket = namespaces.socket_in(namespace, socket.AF_PACKET, socket.SOCK_RAW, protocol)
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self.frames: list[bytes] = []

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        """Until it is over and quiet: what has come and was not read yet counts too."""
        while True:
            try:
                self.frames.append(self._socket.recv(4096))
            except TimeoutError:
                if self._over.is_set():
                    return

    def datagrams(self) -> list[ipv4.Datagram]:
        found = []
        for frame in self.frames:
            try:
                found.append(ipv4.parse(frame))
            except BadPacket:
                continue
        return found


@pytest.fixture(scope="module", params=["0", "1"], ids=["bridged", "through iptables"])
def lan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    with a_site(tmp_path_factory.mktemp("lan")) as site:
        yield Lan(site, request.param)


def test_each_vm_is_answered_by_its_own_node_alone_and_nothing_of_it_is_on_the_lan(lan: Lan) -> None:
    with Capture(lan.namespace) as capture:
        for vm, guest in zip(lan.vms, lan.guests, strict=True):
            lease = guest.lease()
            assert (lease["ip"], lease["hostname"], lease["serverid"]) == (vm.ip, vm.name, METADATA_IP)
            assert guest.metadata("/latest/meta-data/instance-id") == (200, vm.instance_id)
        # They are on one LAN, and reach each other: the capture sees what there is.
        assert lan.guests[0].pings(lan.vms[1].ip)
        assert lan.guests[2].pings(lan.vms[0].ip)
    assert any(frame[12:14] == b"\x08\x06" for frame in capture.frames)
    ports = {port for one in capture.datagrams() for port in (one.source_port, one.target_port)}
    assert ports.isdisjoint({67, 68})
    assert not any(socket.inet_aton(METADATA_IP) in frame[:60] for frame in capture.frames)


def test_a_machine_that_no_node_knows_gets_nothing(lan: Lan) -> None:
    with Capture(lan.namespace) as capture:
        assert lan.stranger.lease(tries=2) == {}
    sent = [one for one in capture.datagrams() if one.target_port == 67]
    assert sent
    assert not any(one.source_port == 67 for one in capture.datagrams())
    lan.stranger.configure("10.50.0.99")
    with Capture(lan.namespace) as capture:
        assert lan.stranger.metadata() == (404, "not found\n")
    # Each node answered with a MAC of its own.
    answers = {frame[6:12].hex(":") for frame in capture.frames if frame[12:22] == ARP_REPLY}
    assert answers == {service_mac(node.identity, "br0") for node in lan.nodes}


def test_who_sends_as_a_nodes_servers_does_not_get_what_is_for_them(lan: Lan) -> None:
    vm, guest = lan.vms[0], lan.guests[0]
    forged = bytes.fromhex(service_mac(lan.nodes[0].identity, "br0").replace(":", ""))
    with namespaces.socket_in(lan.stranger.namespace, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        for _ in range(3):
            wire.sendto(b"\xff" * 6 + forged + b"\x88\xb5" + bytes(46), ("eth0", 0))
            assert guest.metadata("/latest/meta-data/instance-id") == (200, vm.instance_id)


def test_who_has_the_address_of_a_vm_on_the_lan_is_not_told_about_it(lan: Lan) -> None:
    vm = lan.vms[0]
    with Links(lan.stranger.namespace) as links:
        links.add_address("eth0", f"{vm.ip}/24")
        links.keep_addresses("eth0", [f"{vm.ip}/24"])
        links.ensure_route(f"{METADATA_IP}/32", link="eth0")
    found = []
    for _ in range(3):
        try:
            found.append(lan.stranger.metadata("/latest/meta-data/instance-id", timeout_s=0.5))
        except OSError:
            continue
    assert (200, vm.instance_id) not in found
    assert lan.guests[0].metadata("/latest/meta-data/instance-id") == (200, vm.instance_id)


def test_a_vms_port_is_found_open_by_a_node_that_has_no_address_in_the_subnet(lan: Lan) -> None:
    node, vm, guest = lan.nodes[0], lan.vms[0], lan.guests[0]
    assert "10.50." not in run(node.namespace, "ip", "-4", "address")
    guest.lease()
    with guest.listen(80) as server:
        assert "port:80" in node.reboot(vm, "port:80").ready
        connection, (caller, _) = server.accept()
        connection.close()
    assert caller == METADATA_IP


def test_a_vm_with_the_same_address_on_another_node_does_not_answer_in_its_place(lan: Lan) -> None:
    one, other = lan.nodes[0], lan.nodes[2]
    for node in (one, other):
        node.give_more("lan", SHARED)
    try:
        silent, twin = one.create("silent", "lan"), other.create("twin", "lan")
        assert silent.all_nics == twin.all_nics
        guest = other.guest(twin, "br0")
        guest.lease()
        with guest.listen(80), Capture(guest.namespace) as capture:
            with pytest.raises(TimedOut):
                one.reboot(silent, "port:80", CLOSED_S)
            # It is asked, since nobody else on the LAN has that MAC. Its answer goes to its own node.
            assert any(frame[26:30] == socket.inet_aton(METADATA_IP) for frame in capture.frames)
            assert "port:80" in other.reboot(twin, "port:80").ready
    finally:
        for node, name in ((one, "silent"), (other, "twin")):
            node.call(api.VM_DESTROY, {"vm": name})


def test_what_guests_ask_of_dns_is_counted(lan: Lan) -> None:
    node, guest = lan.nodes[1], lan.guests[1]
    guest.lease()
    before = node.metrics()
    for name in ("vm2", "vm2.atoll.internal", "www.example.test"):
        query = dns.message.make_query(name, "A")
        namespaces.inside(guest.namespace, lambda query=query: dns.query.udp(query, METADATA_IP, timeout=5))
    after = node.metrics()
    results = {key[-1]: count - before[key] for key, count in after.items() if key[0] == QUESTIONS}
    assert {result: count for result, count in results.items() if count} == {"answered": 2, "refused": 1}
    assert {key[1] for key in after if key[0] == QUESTIONS} == {"br0"}
    assert not any(key[0].startswith("atoll_dns_asked") for key in after), "this node asks nobody"


def test_promtool_finds_nothing_wrong_with_the_metrics(lan: Lan) -> None:
    page = lan.nodes[0].metrics_page()
    assert b"atoll_guest_frames_total{" in page
    assert b"atoll_door_connections{" in page
    assert complaints(page) == ""


def test_a_vm_that_is_served_again_by_the_next_agent_is_its_own_nodes_still(lan: Lan) -> None:
    lan.nodes[1].kill()
    lan.nodes[1].start()
    for vm, guest in zip(lan.vms, lan.guests, strict=True):
        assert guest.lease()["hostname"] == vm.name
        assert guest.metadata("/latest/meta-data/instance-id") == (200, vm.instance_id)
