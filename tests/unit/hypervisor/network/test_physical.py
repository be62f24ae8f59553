from __future__ import annotations

import pytest

from atoll.errors import Conflict, Invalid
from atoll.hypervisor.network import physical
from atoll.model.network import Subnet

TAGGED = Subnet("blue", "10.9.0.0/24", "10.9.0.1", bridge="lan", vlan=123)
PLAIN = Subnet("red", "10.8.0.0/24", "10.8.0.1", bridge="lan")


def test_subnets_of_one_port_meet_in_one_bridge_only_if_they_have_the_same_vlan():
    assert (PLAIN.bridge_name, TAGGED.bridge_name) == ("lan", "lan.123")


def test_a_vlan_comes_in_on_the_one_port_of_its_bridge_that_is_not_ours():
    assert physical._port_of(TAGGED, {"at-0a090005", "as-12345678", "eth1"}) == "eth1"


@pytest.mark.parametrize("attached", [set(), {"at-0a090005"}, {"eth1", "eth2"}])
def test_a_vlan_needs_one_way_out_and_only_one(attached: set[str]) -> None:
    with pytest.raises(Conflict, match="it must have one port"):
        physical._port_of(TAGGED, attached)


@pytest.mark.parametrize(("vlan", "bridge"), [(0, "lan"), (4095, "lan"), (5, "")])
def test_a_vlan_that_makes_no_sense_is_refused(vlan: int, bridge: str) -> None:
    with pytest.raises(Invalid, match="vlan"):
        Subnet("blue", "10.9.0.0/24", "10.9.0.1", bridge=bridge, vlan=vlan)
