"""What guests reach by way of their node, as rules."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from atoll.model.network import Subnet
from atoll.plan.reach import NO_RULES, Routed, rules

FRONT = Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=("back", "10.9.0.0/16", "10.8.0.0/15", "fd00::/8"))
BACK = Subnet("back", "10.2.0.0/24", "10.2.0.1", cidr6="fd01::/64", gateway6="fd01::1")
LAN = Subnet("lan", "10.3.0.0/24", "10.3.0.1", bridge="br0")
ASIDE = Subnet("aside", "10.1.0.0/24", "10.1.0.1", private=True)


def routed(*subnets: Subnet) -> list[Routed]:
    return [Routed(subnet, f"0a:00:00:00:00:0{number}") for number, subnet in enumerate(subnets)]


def set_of(text: str, name: str) -> set[str]:
    found = re.search(rf"set {name} \{{ [^{{]* elements = \{{ (.*?) \}}", text)
    assert found is not None
    return set(found.group(1).split(", "))


def chain_of(text: str, name: str) -> list[str]:
    return text.partition(f"chain {name} {{\n")[2].partition("\n}")[0].split("\n")


def test_a_node_that_routes_nothing_has_no_rules() -> None:
    assert rules([], [LAN], ["0.0.0.0/0"]) == NO_RULES


def test_a_subnet_is_joined_to_itself_and_to_what_it_names_and_not_back() -> None:
    text = rules(routed(FRONT, BACK), [FRONT, BACK, LAN], ())

    assert set_of(text, "joined") == {
        *('"br-front" . "br-front"', '"br-back" . "br-back"'),
        '"br-front" . "br-back"',
    }
    assert set_of(text, "guest_bridges") == {'"br-front"', '"br-back"'}


def test_a_subnet_on_a_bridge_of_others_can_be_reached_and_is_not_looked_at() -> None:
    joined = Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=("lan",))
    text = rules(routed(joined), [joined, LAN], ())

    assert '"br-front" . "br0"' in set_of(text, "joined")
    assert set_of(text, "guest_bridges") == {'"br-front"'}


def test_a_name_that_no_subnet_has_joins_nothing() -> None:
    assert set_of(rules(routed(FRONT), [FRONT], ()), "joined") == {'"br-front" . "br-front"'}


def test_networks_are_opened_to_their_subnet_and_those_of_the_node_to_all() -> None:
    lines = chain_of(rules(routed(FRONT, BACK), [FRONT, BACK], ("192.0.2.0/24",)), "from_guest")

    assert [line for line in lines if line.startswith('iifname "')] == [
        'iifname "br-front" ip daddr { 10.8.0.0/15, 192.0.2.0/24 } accept',
        'iifname "br-front" ip6 daddr { fd00::/8 } accept',
        'iifname "br-back" ip daddr { 192.0.2.0/24 } accept',
    ]


def test_everywhere_is_one_family_of_addresses() -> None:
    lines = chain_of(rules(routed(BACK), [BACK], ("0.0.0.0/0", "10.0.0.0/8")), "from_guest")
    assert 'iifname "br-back" meta protocol ip accept' in lines


def test_of_the_node_a_guest_gets_answers_and_its_own_gateway_by_ping() -> None:
    lines = chain_of(rules(routed(FRONT, BACK, ASIDE), [FRONT, BACK, ASIDE], ()), "to_node")

    assert [line for line in lines if "echo-request" in line] == [
        'iifname "br-front" ip daddr 10.1.0.1 icmp type echo-request accept',
        'iifname "br-back" ip daddr 10.2.0.1 icmp type echo-request accept',
        'iifname "br-back" ip6 daddr fd01::1 icmpv6 type echo-request accept',
    ]
    assert "reject" in lines[-1]


@given(st.lists(st.sampled_from(["a", "b", "c", "0.0.0.0/0", "10.0.0.0/8", "::/0"]), max_size=6, unique=True))
def test_whatever_is_opened_another_subnet_of_the_node_is_reached_by_its_name_alone(
    reaches: list[str],
) -> None:
    subnets = [
        Subnet("me", "10.1.0.0/24", "10.1.0.1", reaches=tuple(reaches)),
        *(Subnet(name, f"10.{ord(name)}.0.0/24", f"10.{ord(name)}.0.1") for name in "abc"),
    ]
    text = rules(routed(*subnets), subnets, ())
    lines = chain_of(text, "from_guest")

    last_accept_of_bridges = lines.index("iifname . oifname @joined accept")
    first_opened = min(
        (at for at, line in enumerate(lines) if "daddr" in line or "meta protocol" in line), default=99
    )
    refused = [at for at, line in enumerate(lines) if line.startswith("oifname @guest_bridges")]
    assert last_accept_of_bridges < min(refused) <= max(refused) < first_opened
    mine = {pair for pair in set_of(text, "joined") if pair.startswith('"br-me"')}
    assert mine == {'"br-me" . "br-me"', *(f'"br-me" . "br-{name}"' for name in reaches if len(name) == 1)}
