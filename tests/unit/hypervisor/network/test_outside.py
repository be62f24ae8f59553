"""Which routes of a host are in the way of a new subnet."""

from __future__ import annotations

import pytest

from atoll.hypervisor.network.outside import overlapping
from atoll.model.network import Subnet
from atoll.system.addressing import Route

BLUE = Subnet("blue", "10.2.0.0/24", "10.2.0.1")
NODE = "10.213.128.1"


@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "10.2.0.0/24", "10.2.0.128/25", "10.2.0.7/32"])
def test_a_network_of_the_host_that_shares_addresses_is_in_the_way(cidr: str) -> None:
    route = Route(cidr, None, "eth0", None)
    assert overlapping(BLUE, [Route("10.3.0.0/24", None, "eth1", None), route], NODE) == route


@pytest.mark.parametrize(
    "route",
    [
        Route("0.0.0.0/0", "192.0.2.1", "eth0", None),
        Route("10.2.1.0/24", None, "eth0", None),
        Route("10.2.0.0/24", NODE, "atl-0", None),
        Route("10.2.0.0/24", None, "br-blue", "10.2.0.1"),
    ],
    ids=["default", "beside it", "to the node", "its own bridge"],
)
def test_what_leads_everywhere_elsewhere_or_to_the_subnet_itself_is_not(route: Route) -> None:
    assert overlapping(BLUE, [route], NODE) is None
