from __future__ import annotations

from atoll.cli.lease import LEASE_VIEW
from atoll.cli.main import parser_for
from atoll.cli.node import subnet_of
from atoll.cli.output import Style, render_list
from atoll.model.lease import Holder, Lease, LeaseState


def test_leases_are_a_table():
    lease = Lease("10.1.0.9", "52:54:00:00:00:09", "rack1", "lan", Holder.MACHINE, LeaseState.UNUSED)
    header, row = render_list(LEASE_VIEW, [lease], Style()).splitlines()
    assert header.split() == ["IP", "MAC", "HOSTNAME", "SUBNET", "HOLDER", "STATE", "SINCE"]
    assert row.split() == ["10.1.0.9", "52:54:00:00:00:09", "rack1", "lan", "machine", "unused", "-"]


def test_the_gateway_of_an_ipv6_network_is_its_first_address():
    words = ["node", "add-subnet", "blue", "10.2.0.0/24", "--cidr6", "fd02::/64", "--service-ip", "10.2.0.2"]
    subnet = subnet_of(parser_for(["node"]).parse_args(words))
    assert (subnet.cidr6, subnet.gateway6, subnet.service_ip) == ("fd02::/64", "fd02::1", "10.2.0.2")
    assert subnet.autoconf6
