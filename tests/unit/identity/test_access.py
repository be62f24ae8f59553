from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.api.access import Access
from atoll.errors import Denied, Unauthenticated
from atoll.identity.access import (
    Operators,
    check_owner,
    check_owners_given,
    check_route,
    check_subnet,
    operates,
)
from atoll.model.identity import Identity
from atoll.model.network import Subnet
from samples import a_vm

ANN = Identity("ann")
BOB = Identity("bob", groups=frozenset({"web"}))
OPS = Identity("olga", groups=frozenset({"ops"}))
ROBOT = Identity("robot", methods=frozenset({"vm.*"}))
NODE = Operators(users=("root",), groups=("ops",))
DB = a_vm(name="db", owner_users=("ann",), owner_groups=("web",))


@pytest.mark.parametrize("access", [Access.AUTHENTICATED, Access.OWNER, Access.OPERATOR])
def test_only_public_routes_answer_a_caller_without_certificate(access: Access):
    check_route(Access.PUBLIC, "health", None, NODE)
    with pytest.raises(Unauthenticated, match=r"vm\.list needs a client certificate"):
        check_route(access, "vm.list", None, NODE)


@pytest.mark.parametrize("access", [Access.PUBLIC, Access.AUTHENTICATED, Access.OWNER])
def test_any_certificate_passes_where_ownership_is_not_known_yet(access: Access):
    check_route(access, "vm.destroy", ANN, NODE)


@pytest.mark.parametrize("identity", [Identity("root"), OPS, Identity("x", methods=frozenset({"*"}))])
def test_operators_by_user_group_and_method_pass(identity: Identity):
    check_route(Access.OPERATOR, "node.add_subnet", identity, NODE)


@pytest.mark.parametrize(
    "identity", [ANN, BOB, ROBOT, Identity("ops"), Identity("x", groups=frozenset({"root"}))]
)
def test_others_are_denied_what_is_for_operators(identity: Identity):
    with pytest.raises(Denied) as caught:
        check_route(Access.OPERATOR, "node.add_subnet", identity, NODE)
    assert f"{identity.user} may not call node.add_subnet" in caught.value.brief
    assert "root, group ops" in caught.value.brief
    assert caught.value.hint


@pytest.mark.parametrize("identity", [ANN, BOB, OPS, ROBOT, Identity("root")])
def test_owners_operators_and_permitted_methods_may_change_a_vm(identity: Identity):
    check_owner(identity, "vm.destroy", DB, NODE)


@pytest.mark.parametrize(
    "identity", [Identity("eve"), Identity("web"), Identity("eve", groups=frozenset({"ann"}))]
)
def test_a_stranger_is_told_whose_vm_it_is(identity: Identity):
    with pytest.raises(Denied) as caught:
        check_owner(identity, "vm.destroy", DB, NODE)
    assert caught.value.brief == (
        f"{identity.user} may not call vm.destroy on VM db: it belongs to ann, group web"
    )
    assert caught.value.exit_status == 5
    assert caught.value.hint


def test_a_method_permits_itself_and_no_other():
    starter = Identity("cron", methods=frozenset({"vm.start"}))
    check_owner(starter, "vm.start", DB, NODE)
    with pytest.raises(Denied):
        check_owner(starter, "vm.destroy", DB, NODE)


def test_a_vm_without_owners_belongs_to_operators_only():
    check_owner(OPS, "vm.stop", a_vm(name="db", owner_users=()), NODE)
    with pytest.raises(Denied, match="belongs to nobody"):
        check_owner(ANN, "vm.stop", a_vm(name="db", owner_users=()), NODE)


def test_a_long_list_of_owners_is_cut_short():
    with pytest.raises(Denied, match=r"u0, u1, u2, u3, u4, 15 more$"):
        check_owner(ANN, "vm.stop", a_vm(name="db", owner_users=tuple(f"u{n}" for n in range(20))), NODE)


def test_a_subnet_that_names_nobody_is_open_to_all():
    check_subnet(ANN, Subnet(id="lab", cidr="10.0.0.0/24", gateway="10.0.0.1"), NODE)


def test_a_subnet_is_for_those_it_names_and_for_operators():
    subnet = Subnet(
        id="dmz", cidr="10.0.0.0/24", gateway="10.0.0.1", allowed_users=("ann",), allowed_groups=("web",)
    )
    for identity in (ANN, BOB, OPS):
        check_subnet(identity, subnet, NODE)
    with pytest.raises(Denied, match="robot may not use subnet dmz: it is for ann, group web"):
        check_subnet(ROBOT, subnet, NODE)


def test_a_vm_is_made_for_oneself_alone_or_with_others():
    check_owners_given(ANN, ())
    check_owners_given(ANN, ("ann",))
    check_owners_given(ANN, ("bob", "ann"))
    check_owners_given(OPS, ("bob",), NODE)


def test_a_vm_is_not_made_in_the_name_of_others():
    with pytest.raises(Denied, match="ann may not create a VM for bob alone"):
        check_owners_given(ANN, ("bob",), NODE)
    with pytest.raises(Denied):
        check_owners_given(OPS, ("bob",))


# --- limits

patterns = st.frozensets(
    st.sampled_from(["*", "vm.*", "vm.list", "vm.destroy", "node.*", "node.drain", "volume.add", "x.y"])
)
identities = st.builds(
    Identity,
    st.sampled_from(["ann", "bob", "root"]),
    st.frozensets(st.sampled_from(["ops", "web"])),
    patterns,
)
called = st.sampled_from(["vm.list", "vm.destroy", "node.drain", "node.show", "volume.add"])


def may(check: Callable[[], None]) -> bool:
    try:
        check()
    except Denied:
        return False
    return True


@given(identities, patterns, called, st.sampled_from([a for a in Access if a is not Access.PUBLIC]))
def test_a_certificate_with_a_limit_never_may_do_more_than_the_same_without(
    without: Identity, limit: frozenset[str], method: str, access: Access
):
    with_limit = structs.replace(without, limit=limit)
    inside = bool(limit & {method, f"{method.split('.')[0]}.*", "*"})
    for asked in (
        lambda who: may(lambda: check_route(access, method, who, NODE)),
        lambda who: may(lambda: check_owner(who, method, DB, NODE)),
        lambda who: operates(who, method, NODE),
        lambda who: who.may_call(method),
    ):
        assert asked(with_limit) == (asked(without) and inside)


def test_a_limit_denies_an_owner_and_an_operator_and_says_what_would_be_needed():
    script = Identity("root", limit=frozenset({"vm.list", "vm.show"}))
    with pytest.raises(Denied) as caught:
        check_route(Access.OWNER, "vm.destroy", script, NODE)
    assert caught.value.brief == (
        "root may not call vm.destroy: the certificate is limited to vm.list, vm.show"
    )
    assert "--limit 'vm.list vm.show vm.destroy'" in caught.value.hint
    check_route(Access.AUTHENTICATED, "vm.list", script, NODE)


def test_an_empty_limit_denies_all():
    with pytest.raises(Denied, match="limited to nothing"):
        check_route(Access.AUTHENTICATED, "vm.list", Identity("root", limit=frozenset()), NODE)
