from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from atoll.errors import AtollError, Conflict, Invalid, NotFound, PoolEmpty
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet, mac_for
from atoll.plan.addresses import ANYWHERE, Given, check_gives_key, choose, free_addresses

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


def test_a_subnet_is_joined_to_one_that_there_is():
    with pytest.raises(NotFound, match="'dmz': not on this node"):
        Given().add_subnet(structs.replace(LAN, reaches=("dmz",)))
    joined = node().change_subnet("lan", {"reaches": ("dmz", "10.9.0.0/16")}, ["web"])
    assert joined.subnet("lan").reaches == ("dmz", "10.9.0.0/16")


def test_nothing_is_joined_to_a_private_subnet():
    aside = Subnet("aside", "10.3.0.0/24", "10.3.0.1", private=True)
    with pytest.raises(Conflict, match="aside, which is private"):
        node().add_subnet(aside).change_subnet("lan", {"reaches": ("aside",)}, [])


def test_another_subnet_that_gets_the_name_of_one_that_is_gone_is_joined_to_nothing():
    joined = node().change_subnet("lan", {"reaches": ("dmz", "10.9.0.0/16")}, [])
    assert joined.remove_subnet("dmz", []).subnet("lan").reaches == ("10.9.0.0/16",)


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
    free = free_addresses(given_, {("lan", "10.1.0.6")}, {("lan", "10.1.0.5"): 2, ("lan", "10.1.0.7"): 1})
    assert [one.ip for one in free["lan"]] == ["10.1.0.7", "10.1.0.5"]


def test_addresses_are_used_in_the_order_given():
    given_ = node("10.1.0.9", "10.1.0.3")
    assert choose(given_, free_addresses(given_, (), {}), None, ["lan", "dmz"], "n")[1].ip == "10.1.0.9"


def test_the_first_allowed_subnet_with_a_free_address_is_chosen():
    given_ = node("10.1.0.5").add_addresses("dmz", [address("10.2.0.5")])
    free = free_addresses(given_, (), {})
    assert choose(given_, free, None, ["dmz"], "n")[0] == DMZ
    assert (
        choose(given_, free_addresses(given_, {("lan", "10.1.0.5")}, {}), None, ["lan", "dmz"], "n")[0] == DMZ
    )
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
    assert "atoll subnet" in refusal.value.hint


# --- taking away, and changing


def test_an_address_that_somebody_has_is_not_taken_away():
    with pytest.raises(Conflict, match=r"10\.1\.0\.5 \(VM web\)"):
        node("10.1.0.5", "10.1.0.6").remove_addresses("lan", ["10.1.0.5", "10.1.0.6"], {"10.1.0.5": "VM web"})


def test_an_address_that_is_taken_away_may_be_gone_already():
    assert node("10.1.0.5").remove_addresses("lan", ["10.1.0.5", "10.1.0.9"], {}).addresses["lan"] == ()
    with pytest.raises(NotFound, match="wan"):
        node().remove_addresses("wan", ["10.1.0.5"], {})


def test_a_subnet_goes_with_its_addresses_and_not_while_it_is_used():
    given_ = node("10.1.0.5")
    assert given_.remove_subnet("lan", ()) == Given(subnets=(DMZ,))
    assert given_.remove_subnet("wan", ()) == given_
    with pytest.raises(Conflict, match="in use by VM a, VM b, VM c, VM d, VM e and 1 more"):
        given_.remove_subnet("lan", [f"VM {name}" for name in "fedcba"])


def test_a_subnet_is_changed_in_what_it_tells():
    changed = node().change_subnet("lan", {"dns": ("10.1.0.3",), "metadata": False}, ["VM web"])
    assert changed.subnet("lan") == structs.replace(LAN, dns=("10.1.0.3",), metadata=False)
    assert changed.subnet("dmz") == DMZ
    with pytest.raises(NotFound, match="wan"):
        node().change_subnet("wan", {}, ())


def test_its_gateway_is_changed_where_nobody_is_affected():
    assert (
        node("10.1.0.5").change_subnet("lan", {"gateway": "10.1.0.2"}, ()).subnet("lan").gateway == "10.1.0.2"
    )
    with pytest.raises(Conflict, match=r"10\.1\.0\.1 is the router of VM web"):
        node().change_subnet("lan", {"gateway": "10.1.0.2"}, ["VM web"])
    with pytest.raises(Invalid, match=r"10\.1\.0\.5"):
        node("10.1.0.5").change_subnet("lan", {"gateway": "10.1.0.5"}, ())
    with pytest.raises(Invalid, match="is not inside"):
        node().change_subnet("lan", {"gateway": "10.9.0.1"}, ())


# --- the same address in two subnets

TENANT = Subnet("tenant", "10.1.0.0/24", "10.1.0.1", private=True)


def test_a_private_subnet_may_overlap_others_on_a_bridge_of_its_own():
    given_ = node("10.1.0.5").add_subnet(TENANT).add_addresses("tenant", [address("10.1.0.5")])
    free = free_addresses(given_, {("tenant", "10.1.0.5")}, {})
    assert (free["lan"], free["tenant"]) == ((address("10.1.0.5"),), ())
    assert Given().add_subnet(TENANT).add_subnet(LAN).subnets == (TENANT, LAN)
    free = free_addresses(given_, {(ANYWHERE, "10.1.0.5")}, {})
    assert (free["lan"], free["tenant"]) == ((), ())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LAN, structs.replace(TENANT, private=False)),
        (structs.replace(LAN, bridge="br0"), structs.replace(TENANT, bridge="br0")),
    ],
    ids=["none is private", "one bridge"],
)
def test_otherwise_no_two_overlap(first: Subnet, second: Subnet):
    with pytest.raises(Conflict, match="overlaps subnet lan") as refusal:
        Given().add_subnet(first).add_subnet(second)
    assert "private" in refusal.value.hint


def test_leases_of_one_address_are_told_apart_by_their_subnets():
    given_ = node().add_subnet(TENANT)
    for subnet in ("lan", "tenant"):
        given_ = given_.add_lease(Reservation("10.1.0.9", mac_for("10.1.0.9"), f"rack-{subnet}", subnet))
    with pytest.raises(Conflict, match="in each of lan, tenant"):
        given_.delete_lease("10.1.0.9")
    assert [lease.hostname for lease in given_.delete_lease("10.1.0.9", "lan").leases] == ["rack-tenant"]


def test_no_vm_has_its_key_in_a_private_subnet():
    assert check_gives_key(LAN) is LAN
    with pytest.raises(Conflict, match="tenant: is private"):
        check_gives_key(TENANT)


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
        held = {("lan", ip) for ip in self.held}
        return free_addresses(self.given, held, {("lan", ip): at for ip, at in self.freed.items()})["lan"]

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

    @rule(ips=st.lists(IPS, max_size=3))
    def take_away(self, ips: list[str]) -> None:
        before = self.given
        users = dict.fromkeys(self.held, "VM web")
        try:
            self.given = before.remove_addresses("lan", ips, users)
        except Conflict:
            assert self.held & set(ips)
        else:
            assert not self.held & set(ips)
            assert not {one.ip for one in self.given.addresses["lan"]} & set(ips)

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
