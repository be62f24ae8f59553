from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atoll.errors import AtollError, Conflict, Invalid, NotFound, PoolEmpty
from atoll.model.network import Address, Subnet, mac_for
from atoll.plan.addresses import Given, choose, free_addresses

LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
DMZ = Subnet("dmz", "10.2.0.0/24", "10.2.0.1")


def address(ip: str, mac: str | None = None) -> Address:
    return Address(ip, mac or mac_for(ip))


def node(*ips: str) -> Given:
    return Given().add_subnet(LAN).add_subnet(DMZ).add_addresses("lan", map(address, ips))


def test_a_subnet_can_be_added_again():
    once = Given().add_subnet(LAN)
    assert once.add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1")) == once


def test_another_subnet_under_the_same_id_is_a_conflict():
    with pytest.raises(Conflict, match="other settings"):
        Given().add_subnet(LAN).add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1", mtu=9000))


def test_subnets_must_not_overlap():
    with pytest.raises(Conflict, match="overlaps subnet lan"):
        Given().add_subnet(LAN).add_subnet(Subnet("wide", "10.0.0.0/8", "10.0.0.1"))


def test_addresses_of_an_unknown_subnet_are_refused_with_those_there_are():
    with pytest.raises(NotFound) as refusal:
        node().add_addresses("wan", [address("10.1.0.5")])
    assert "lan, dmz" in refusal.value.hint


@pytest.mark.parametrize("ip", ["10.2.0.5", "10.1.0.0", "10.1.0.1", "10.1.0.255"])
def test_an_address_that_no_machine_can_have_there_is_refused(ip: str):
    with pytest.raises(Invalid, match=ip):
        node().add_addresses("lan", [address(ip)])


@pytest.mark.parametrize(
    "clash", [address("10.1.0.5", "52:54:00:00:00:99"), address("10.1.0.6", mac_for("10.1.0.5"))]
)
def test_an_ip_or_a_mac_can_be_given_once(clash: Address):
    with pytest.raises(Conflict, match=r"clashes with 10\.1\.0\.5"):
        node("10.1.0.5").add_addresses("lan", [clash])


def test_a_mac_of_another_subnet_is_a_conflict_too():
    with pytest.raises(Conflict):
        node("10.1.0.5").add_addresses("dmz", [address("10.2.0.5", mac_for("10.1.0.5"))])


def test_a_clash_within_one_request_is_found():
    with pytest.raises(Conflict):
        node().add_addresses("lan", [address("10.1.0.5"), address("10.1.0.5", "52:54:00:00:00:99")])


def test_what_was_freed_last_is_used_last():
    given_ = node("10.1.0.5", "10.1.0.6", "10.1.0.7")
    free = free_addresses(given_, {"10.1.0.6"}, {"10.1.0.5": 2, "10.1.0.7": 1})
    assert [one.ip for one in free["lan"]] == ["10.1.0.7", "10.1.0.5"]


def test_addresses_are_used_in_the_order_given():
    given_ = node("10.1.0.9", "10.1.0.3")
    assert choose(given_, free_addresses(given_, (), {}), None, ["lan", "dmz"], "n")[1].ip == "10.1.0.9"


def test_the_first_allowed_subnet_with_a_free_address_is_chosen():
    given_ = node("10.1.0.5").add_addresses("dmz", [address("10.2.0.5")])
    free = free_addresses(given_, (), {})
    assert choose(given_, free, None, ["dmz"], "n")[0] == DMZ
    assert choose(given_, free_addresses(given_, {"10.1.0.5"}, {}), None, ["lan", "dmz"], "n")[0] == DMZ
    assert choose(given_, free, "lan", ["lan", "dmz"], "n")[0] == LAN


@pytest.mark.parametrize(
    ("given_", "wanted", "allowed", "says"),
    [
        (Given(), None, [], "no subnet that you may use"),
        (node("10.1.0.5"), None, [], "no subnet that you may use"),
        (node(), None, ["lan", "dmz"], "no free address in subnet lan, dmz"),
        (node(), "dmz", ["lan", "dmz"], "no free address in subnet dmz"),
    ],
)
def test_an_empty_pool_says_where_and_what_to_do(
    given_: Given, wanted: str | None, allowed: list[str], says: str
):
    with pytest.raises(PoolEmpty, match=f"on n1: .*{says}") as refusal:
        choose(given_, free_addresses(given_, (), {}), wanted, allowed, "n1")
    assert "atoll node add" in refusal.value.hint


IPS = st.integers(0, 12).map(lambda last: f"10.1.0.{last}")
ADDRESSES = st.builds(Address, IPS, IPS.map(mac_for))


@given(st.lists(ADDRESSES))
def test_adding_addresses_again_changes_nothing(new: list[Address]):
    try:
        once = node().add_addresses("lan", new)
    except AtollError:
        return
    assert once.add_addresses("lan", new) == once
    assert set(once.addresses["lan"]) == set(new)


class Pool(RuleBasedStateMachine):
    """Any history of giving, taking and freeing addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.given = node()
        self.held: set[str] = set()
        self.freed: dict[str, int] = {}

    def free(self) -> tuple[Address, ...]:
        return free_addresses(self.given, self.held, self.freed)["lan"]

    @rule(new=st.lists(ADDRESSES, max_size=4))
    def give(self, new: list[Address]) -> None:
        before = self.given
        try:
            self.given = before.add_addresses("lan", new)
        except (Invalid, Conflict):
            assert self.given is before

    @precondition(lambda self: self.free())
    @rule()
    def take(self) -> None:
        _, taken = choose(self.given, {"lan": self.free()}, None, ["lan"], "n")
        assert taken.ip not in self.held
        self.held.add(taken.ip)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        ip = data.draw(st.sampled_from(sorted(self.held)))
        self.held.discard(ip)
        self.freed[ip] = max(self.freed.values(), default=0) + 1

    @invariant()
    def no_address_is_both_free_and_held(self) -> None:
        free = {one.ip for one in self.free()}
        assert not free & self.held
        assert free | self.held == {one.ip for one in self.given.addresses["lan"]} | self.held

    @invariant()
    def every_ip_and_mac_is_there_once(self) -> None:
        all_ = self.given.addresses["lan"]
        assert len({one.ip for one in all_}) == len({one.mac for one in all_}) == len(all_)


TestPool = Pool.TestCase
