"""NAT of a cloud, attacked from its guests, from another cloud, and from the LAN; and all of it taken back.

    other ──┐
    lan ── wan (host, which forwards nothing from there) ── atl-0 ═ uplink (cloud) ── guest
                                                         └── atl-1 ═ uplink (cloud) ── guest

Everything is in namespaces of this test; no agent runs, so what holds here is the host's doing alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atoll.cli.cloud import wires
from atoll.cli.cloud.layout import Cloud, subnet_for
from atoll.errors import HostFailure
from atoll.system import namespaces, nft, steps, switches
from atoll.system.links import Links, read_sysctl, sysctl
from atoll.system.steps import STEPS
from node_labs import run

LAN, HOST, OTHER = "198.51.100.1", "198.51.100.2", "192.0.2.1"
PORT = 8080
QUICK_S = 0.3


class Lab:
    def __init__(self, stack: ExitStack) -> None:
        self._prefix = f"xnat{os.getpid()}{secrets.token_hex(2)}"
        self._stack = stack
        self.host, self.lan, self.other = (self._namespace(name) for name in ("host", "lan", "other"))
        sysctl("net/ipv4/ip_forward", "0", self.host)
        self._wire(self.host, "wan", HOST, self.lan, LAN)
        self._wire(self.host, "net", "192.0.2.2", self.other, OTHER)
        sysctl("net/ipv4/conf/net/forwarding", "1", self.host)
        for far in (self.lan, self.other):
            run(far, "ip", "route", "add", "default", "via", HOST if far == self.lan else "192.0.2.2")
        run(self.host, "ip", "route", "add", "default", "via", LAN)
        self.clouds = [
            Cloud(f"{self._prefix}c{number}", number, subnet_for(f"10.213.{number}.0/24"))
            for number in (0, 1)
        ]
        for cloud in self.clouds:
            stack.callback(namespaces.delete, cloud.namespace)
        self.inside(lambda: [wires.ensure(cloud) for cloud in self.clouds])
        self.guests = [self._guest(cloud) for cloud in self.clouds]
        for where in (self.host, self.lan, self.other, *self.guests):
            listening = namespaces.socket_in(where, socket.AF_INET, socket.SOCK_STREAM)
            listening.bind(("0.0.0.0", PORT))
            listening.listen()
            stack.callback(listening.close)

    def _namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        self._stack.callback(namespaces.delete, full)
        namespaces.ensure(full)
        return full

    def _wire(self, here: str, link: str, ip: str, there: str, other_ip: str) -> None:
        with Links(here) as links, Links(there) as far:
            links.ensure_veth(link, "eth0", there)
            links.add_address(link, f"{ip}/24")
            links.up(link)
            far.add_address("eth0", f"{other_ip}/24")
            far.up("eth0")

    def _guest(self, cloud: Cloud) -> str:
        guest = self._namespace(f"guest{cloud.number}")
        sysctl("net/ipv4/ip_forward", "1", cloud.namespace)
        self._wire(cloud.namespace, "br", cloud.subnet.gateway, guest, self.ip(cloud))
        run(guest, "ip", "route", "add", "default", "via", cloud.subnet.gateway)
        return guest

    def ip(self, cloud: Cloud) -> str:
        return str(cloud.subnet.network[10])

    def inside(self, function: Callable[[], object]) -> None:
        """As `atoll` on this host would."""
        namespaces.inside(self.host, function)

    def nat(self, *on: int) -> None:
        """These clouds have NAT, and the others have not."""
        for cloud in self.clouds:
            self.inside(
                lambda cloud=cloud: (wires.ensure_nat if cloud.number in on else wires.remove_nat)(cloud)
            )

    def state(self) -> tuple[dict[str, str], list[str]]:
        """What the host has of forwarding and of rules."""
        links = ("wan", "net", *(cloud.uplink for cloud in self.clouds))
        forwarding = {link: read_sysctl(f"net/ipv4/conf/{link}/forwarding", self.host) for link in links}
        return forwarding, sorted(name for _, name in nft.tables(self.host))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(switches, "REGISTER", tmp_path / "run" / "switches.json")
    with ExitStack() as stack:
        yield Lab(stack)


def connects(namespace: str, ip: str) -> bool:
    with namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(QUICK_S)
        with contextlib.suppress(OSError):
            client.connect((ip, PORT))
            return True
    return False


def test_without_nat_a_guest_opens_nothing_and_the_host_reaches_it(lab: Lab) -> None:
    lab.nat()
    (guest, _), (cloud, other) = lab.guests, lab.clouds
    for ip in (LAN, HOST, cloud.host_ip, lab.ip(other)):
        assert not connects(guest, ip), ip
    assert connects(lab.host, lab.ip(cloud))


def test_with_nat_guests_get_out_and_nobody_gets_in(lab: Lab) -> None:
    before = lab.state()
    lab.nat(0)
    (guest, _), (cloud, other) = lab.guests, lab.clouds
    assert connects(guest, LAN)
    assert connects(guest, OTHER)
    assert connects(lab.host, lab.ip(cloud))
    for ip in (HOST, cloud.host_ip, "192.0.2.2", lab.ip(other), other.node_ip):
        assert not connects(guest, ip), f"from a guest to {ip}"
    assert not connects(lab.lan, lab.ip(cloud)), "from the LAN to a guest"
    assert not connects(lab.lan, lab.ip(other)), "from the LAN to a guest of a cloud without NAT"
    assert not connects(lab.lan, OTHER), "through the host, which is no router"

    lab.nat()
    assert lab.state() == before
    assert not connects(guest, LAN)
    assert not connects(guest, HOST)


def test_of_two_clouds_with_nat_each_is_apart_and_the_last_one_takes_it_all_back(lab: Lab) -> None:
    before = lab.state()
    lab.nat(0, 1)
    for guest, other in zip(lab.guests, reversed(lab.clouds), strict=True):
        assert connects(guest, LAN)
        assert not connects(guest, lab.ip(other))
    lab.nat(1)
    assert connects(lab.guests[1], LAN), "it does not end with the other's"
    assert not connects(lab.guests[0], LAN)
    lab.nat()
    assert lab.state() == before
    assert not switches.REGISTER.exists()


@pytest.mark.parametrize("step", sorted(name for name in STEPS if name.startswith("switches.")))
def test_whoever_fails_on_the_way_leaves_nothing_that_is_not_taken_back(lab: Lab, step: str) -> None:
    before = lab.state()
    (fault,) = steps.arm(f"{step}:1:ERROR")
    for on in ((0,), ()):
        with contextlib.suppress(HostFailure):
            lab.nat(*on)
    assert fault.left == 0, "it struck"
    lab.nat(0)  # brought up again
    assert connects(lab.guests[0], LAN)
    lab.nat()
    assert lab.state() == before


def test_what_a_version_before_noted_is_what_is_given_back(lab: Lab) -> None:
    cloud = Cloud(lab.clouds[0].id, 0, lab.clouds[0].subnet, forwarding={"net/ipv4/conf/wan/forwarding": "0"})
    sysctl("net/ipv4/conf/wan/forwarding", "1", lab.host)
    lab.inside(lambda: wires.ensure_nat(cloud))
    lab.nat()
    assert lab.state()[0]["wan"] == "0"
