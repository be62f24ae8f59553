from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from atoll.model.network import vlan_link
from atoll.system.uplinks import OWN_BRIDGE, own_mac, vlan_attributes


def test_the_kernel_is_asked_for_a_vlan_of_a_link():
    """As it goes over the wire: encoded, and read back."""
    message = ifinfmsg()
    message["attrs"] = vlan_attributes("eth1.123", port_index=7, vlan=123)
    message.encode()
    seen = ifinfmsg(message.data)
    seen.decode()
    info = seen.get_attr("IFLA_LINKINFO")
    assert (seen.get_attr("IFLA_IFNAME"), seen.get_attr("IFLA_LINK")) == ("eth1.123", 7)
    assert info.get_attr("IFLA_INFO_KIND") == "vlan"
    assert info.get_attr("IFLA_INFO_DATA").get_attr("IFLA_VLAN_ID") == 123


LINKS = st.text("abcdef0123456789", min_size=1, max_size=15)
VLANS = st.integers(1, 4094)


@given(st.tuples(LINKS, VLANS), st.tuples(LINKS, VLANS))
def test_every_vlan_has_a_name_of_its_own_that_a_link_can_have(
    one: tuple[str, int], other: tuple[str, int]
) -> None:
    assert len(vlan_link(*one)) <= 15
    assert one == other or vlan_link(*one) != vlan_link(*other)


def test_a_bridge_has_the_same_mac_each_time_and_another_on_every_node():
    assert own_mac("lan", "52:54:00:00:00:01") == own_mac("lan", "52:54:00:00:00:01")
    assert own_mac("lan", "52:54:00:00:00:01") != own_mac("lan", "52:54:00:00:00:02")
    assert own_mac("lan", "52:54:00:00:00:01").startswith(OWN_BRIDGE)
