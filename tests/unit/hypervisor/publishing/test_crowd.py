"""Who makes room for whom when a publisher is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.hypervisor.publishing.program.connections import source_of
from atoll.hypervisor.publishing.program.crowd import Crowd, Member

MOST, PER_VM = 8, 4


def crowd_of(*members: tuple[str, str]) -> tuple[Crowd, list[Member]]:
    crowd = Crowd(MOST, PER_VM)
    added = [Member(*one) for one in members]
    for one in added:
        crowd.add(one)
    return crowd, added


def test_there_is_room_until_there_is_none() -> None:
    crowd, _ = crowd_of(("web", "a"), ("web", "a"), ("web", "a"))
    assert crowd.admit("web", "a") == (True, None)


def test_of_a_vm_that_is_full_whoever_has_most_yields_what_was_not_used_for_longest() -> None:
    crowd, (first, second, *_) = crowd_of(("web", "a"), ("web", "a"), ("web", "a"), ("web", "b"))
    assert crowd.admit("web", "c") == (True, first)
    crowd.touch(first)
    assert crowd.admit("web", "b") == (True, second)
    assert crowd.admit("web", "a") == (False, None)


def test_nobody_yields_to_whoever_would_have_as_many() -> None:
    crowd, _ = crowd_of(*(("web", source) for source in "abcd"))
    assert crowd.admit("web", "e") == (False, None)


def test_when_all_is_full_the_vm_that_has_most_yields() -> None:
    crowd, added = crowd_of(*(("web", source) for source in "abcd"), *[("db", "a")] * 3, ("ldap", "a"))
    assert crowd.admit("ldap", "z") == (True, added[0])
    assert crowd.admit("new", "z") == (True, added[0])
    assert crowd.admit("web", "z") == (False, None)


@given(st.lists(st.tuples(st.sampled_from("vwxyz"), st.sampled_from("abc"), st.booleans()), max_size=60))
def test_it_never_holds_more_than_it_may_and_the_first_of_somebody_gets_in_where_another_has_three(
    comers: list[tuple[str, str, bool]],
) -> None:
    crowd, held = Crowd(MOST, PER_VM), list[Member]()
    for vm, source, leaves in comers:
        admitted, instead_of = crowd.admit(vm, source)
        mine = [one for one in held if (one.vm, one.source) == (vm, source)]
        theirs = [one for one in held if one.vm == vm]
        if not mine and any(sum(one.source == each.source for each in theirs) > 2 for one in theirs):
            assert admitted
        if instead_of is not None:
            crowd.remove(instead_of)
            held.remove(instead_of)
        if admitted:
            held.append(Member(vm, source))
            crowd.add(held[-1])
        if leaves and held:
            crowd.remove(held.pop(0))
        assert crowd.size == len(held) <= MOST
        assert all(len(crowd.of(one.vm)) <= PER_VM for one in held)
        assert {one for name in "vwxyz" for one in crowd.of(name)} == set(held)


def test_one_machine_with_many_ipv6_addresses_is_one_source() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8:0:0:ffff::2%eth0")
    assert source_of("2001:db8::1") != source_of("2001:db8:0:1::1")
    assert source_of("192.0.2.1") == "192.0.2.1"
