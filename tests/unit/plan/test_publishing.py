"""Which ports may be published, and what makes a publisher carry what the records say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.errors import AtollError, Conflict, Denied, Invalid
from atoll.model.publishing import ALL_IP4, ALL_IP6, MAX_PUBLISHED, Publication
from atoll.model.vm import VM, VmState
from atoll.plan.publishing import (
    Asking,
    Entry,
    Rules,
    differences,
    published_with,
    published_without,
    wanted_of,
)
from samples import a_vm

ADDRESSES = st.sampled_from([ALL_IP4, ALL_IP6, "127.0.0.1", "192.0.2.1", "::1"])
PUBLICATIONS = st.builds(Publication, st.integers(1024, 1030), st.integers(80, 81), ADDRESSES, st.booleans())


def asking(**changes: Any) -> Asking:
    told = {"node": "n1", "rules": Rules(), "api_port": 6976, "is_operator": False, "sees_others": True}
    return Asking(**{**told, **changes})


def vm(name: str, *published: Publication, last: int = 5, **more: Any) -> VM:
    return a_vm(f"10.0.0.{last}", name=name, instance_id=name, published=published, **more)


def test_a_port_that_names_no_address_is_at_the_first_that_the_node_allows() -> None:
    (one,) = published_with(vm("web"), [Publication(8080, 80)], [], asking()).published
    assert one.key == "0.0.0.0:8080"
    rules = Rules(addresses=("127.0.0.1",))
    (one,) = published_with(vm("web"), [Publication(8080, 80)], [], asking(rules=rules)).published
    assert one.key == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("publication", "rules", "why"),
    [
        (Publication(80, 80), Rules(), "users may publish 1024-65535"),
        (Publication(8080, 80), Rules(ports=("9000",)), "users may publish 9000"),
        (Publication(8080, 80), Rules(ports=()), "users may publish no ports"),
        (Publication(8080, 80, "192.0.2.1"), Rules(addresses=("127.0.0.1",)), "may publish at 127.0.0.1"),
        (Publication(8080, 80, "::1"), Rules(addresses=(ALL_IP4,)), "may publish at 0.0.0.0"),
    ],
)
def test_users_publish_what_the_node_allows_and_operators_anything(
    publication: Publication, rules: Rules, why: str
) -> None:
    with pytest.raises(Denied, match=why):
        published_with(vm("web"), [publication], [], asking(rules=rules))
    assert published_with(vm("web"), [publication], [], asking(rules=rules, is_operator=True)).published


def test_nobody_gets_the_port_of_the_api_or_any_where_nothing_is_published() -> None:
    with pytest.raises(Denied, match="the API's own port"):
        published_with(vm("web"), [Publication(6976, 80)], [], asking(is_operator=True))
    with pytest.raises(Denied, match="nothing is published on node n1"):
        published_with(
            vm("web"), [Publication(8080, 80)], [], asking(rules=Rules(addresses=()), is_operator=True)
        )


def test_a_port_of_another_vm_is_refused_and_the_vm_named_to_those_who_may_see_it() -> None:
    other = vm("db", Publication(8080, 80, "127.0.0.1"))
    wanted = [Publication(8080, 80)]
    with pytest.raises(Conflict, match=r"127\.0\.0\.1:8080 is VM db's"):
        published_with(vm("web"), wanted, [other], asking())
    with pytest.raises(Conflict, match="is another VM's"):
        published_with(vm("web"), wanted, [other], asking(sees_others=False))
    assert published_with(vm("web"), [Publication(8080, 80, "127.0.0.2")], [other], asking()).published


def test_what_is_published_already_is_fine_and_to_another_port_is_not() -> None:
    web = vm("web", Publication(8080, 80, ALL_IP4))
    assert published_with(web, [Publication(8080, 80)], [web], asking()) == web
    with pytest.raises(Conflict, match="leads to its port 80 already"):
        published_with(web, [Publication(8080, 81)], [web], asking())


def test_a_vm_has_so_many_ports_and_no_more() -> None:
    wanted = [Publication(2000 + number, 80) for number in range(MAX_PUBLISHED + 1)]
    assert len(published_with(vm("web"), wanted[1:], [], asking()).published) == MAX_PUBLISHED
    with pytest.raises(Conflict, match="more than the 32"):
        published_with(vm("web"), wanted, [], asking())


@given(st.lists(PUBLICATIONS, max_size=4), st.lists(PUBLICATIONS, max_size=4))
def test_no_two_published_ports_ever_clash(first: list[Publication], second: list[Publication]) -> None:
    vms = [vm("red"), vm("blue", last=6)]
    for index, wanted in enumerate((first, second)):
        try:
            vms[index] = published_with(vms[index], wanted, vms, asking())
        except AtollError:
            continue
    held = [one for each in vms for one in each.published]
    assert not [1 for one in held for other in held if one is not other and one.clashes(other)]


def test_a_port_is_taken_back_at_one_address_or_at_all() -> None:
    there, here = Publication(8080, 80, "127.0.0.1"), Publication(8080, 80, "127.0.0.2")
    web = vm("web", there, here, Publication(9090, 90))
    assert published_without(web, 8080, "127.0.0.1").published == (here, Publication(9090, 90))
    assert published_without(web, 8080, None).published == (Publication(9090, 90),)
    assert published_without(web, 1, None) == web


@pytest.mark.parametrize("state", VmState)
def test_a_port_leads_to_a_guest_that_is_up_and_nowhere_while_it_is_down(state: VmState) -> None:
    web = vm("web", Publication(8080, 80, ALL_IP4), state=state)
    found = {key: entry.ip for key, (_, _, entry) in wanted_of([web]).items()}
    if state in (VmState.DESTROYING, VmState.DAMAGED):
        assert found == {}
    else:
        assert found == {"0.0.0.0:8080": web.ip if state in (VmState.RUNNING, VmState.STOPPING) else ""}


ENTRIES = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(
        Entry,
        st.just(""),
        st.sampled_from(["v1", "v2"]),
        st.sampled_from(["", "10.0.0.5", "10.0.0.6"]),
        st.integers(80, 81),
        st.booleans(),
    ),
).map(lambda found: {key: structs.replace(entry, key=key) for key, entry in found.items()})


@given(ENTRIES, ENTRIES, st.sets(st.sampled_from(["10.0.0.6"])))
def test_a_publisher_that_does_as_it_is_told_carries_what_is_wanted(
    wanted: dict[str, Entry], carried: dict[str, Entry], unknown: set[str]
) -> None:
    found, todo = dict(carried), differences(wanted, carried, unknown)
    for key in todo.drop:
        del found[key]
    for entry in todo.point:
        before = found[entry.key]
        assert (before.vm, before.proxy) == (entry.vm, entry.proxy)
        found[entry.key] = entry
    for entry in todo.carry:
        assert entry.key not in found
        found[entry.key] = entry
    left = {key: entry for key, entry in carried.items() if key not in wanted and entry.ip in unknown}
    assert found == wanted | left
    assert wanted != carried or todo == differences({}, {})


@pytest.mark.parametrize("ports", [("x",), ("1-",), ("70000",), ("20-10",), ("0",)])
def test_ranges_of_ports_that_are_none_are_refused(ports: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match=r"publish\.ports"):
        Rules(ports=ports)


@pytest.mark.parametrize(("address", "why"), [("web", "is not an IP"), ("::0", "write ::")])
def test_an_address_is_one_and_in_its_shortest_form(address: str, why: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Publication(80, 80, address)
    assert why in f"{refusal.value.brief} {refusal.value.hint}"
