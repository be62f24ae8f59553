from __future__ import annotations

from typing import Any

import pytest

from atoll.cli.install.wish import bridge_over, subnet_of
from atoll.errors import Invalid
from atoll.model.network import Address, mac_for

POOL = tuple(Address(ip, mac_for(ip)) for ip in ("10.9.0.5", "10.9.0.6"))
NOTHING: dict[str, Any] = {"gateway": None, "bridge": None, "port": None, "vlan": None, "addresses": ()}


def test_a_subnet_that_the_node_routes_itself_is_all_for_vms():
    subnet, pool = subnet_of("10.9.0.0/29", **NOTHING)
    assert subnet is not None
    assert (subnet.bridge, subnet.gateway, len(pool)) == ("", "10.9.0.1", 5)


def test_of_a_network_that_others_use_only_what_is_named_is_for_vms():
    subnet, pool = subnet_of("10.9.0.0/24", **NOTHING | {"port": "eth1", "vlan": 7, "addresses": POOL})
    assert subnet is not None
    assert (subnet.bridge, subnet.vlan, pool) == ("br-eth1", 7, POOL)
    with pytest.raises(Invalid, match="others may be in use there"):
        subnet_of("10.9.0.0/24", **NOTHING | {"bridge": "br0"})


@pytest.mark.parametrize(
    "option", [{"gateway": "10.9.0.1"}, {"bridge": "br0"}, {"vlan": 3}, {"addresses": POOL}]
)
def test_what_belongs_to_a_subnet_makes_no_sense_without_one(option: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        subnet_of(None, **NOTHING | option)
    assert refused.value.hint == "add --subnet CIDR"


def test_the_name_of_a_bridge_is_one_that_a_link_can_have():
    assert bridge_over("eth1") == "br-eth1"
    assert len(bridge_over("enp0s31f6np0abc")) <= 15
    assert bridge_over("enp0s31f6np0abc") != bridge_over("enp0s31f6np0abd")
