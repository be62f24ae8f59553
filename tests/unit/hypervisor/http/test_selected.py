from __future__ import annotations

import json

import pytest
from tests.shared.samples import a_vm

from atoll.api.hypervisor import VmFilter
from atoll.errors import Invalid
from atoll.hypervisor.http.views import selected
from atoll.model.identity import Identity
from atoll.model.vm import VmState

VMS = (
    a_vm("10.1.0.5", name="web", owner_users=("ann",), tags={"tier": "front", "team": "reef"}),
    a_vm("10.1.0.6", name="db", owner_users=("bob", "ann"), state=VmState.STOPPED, driver="lxc"),
    a_vm("10.1.0.7", name="ci", owner_users=("bob",), owner_groups=("dev",), tags={"tier": "back"}),
)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (VmFilter(), "web db ci"),
        (VmFilter(owner="bob"), "db ci"),
        (VmFilter(mine=True), "web db ci"),
        (VmFilter(state=VmState.STOPPED), "db"),
        (VmFilter(kind="sim"), "web ci"),
        (VmFilter(tags=json.dumps({"tier": "front"})), "web"),
        (VmFilter(tags=json.dumps({"tier": "front", "team": "none"})), ""),
        (VmFilter(owner="ann", kind="lxc"), "db"),
    ],
)
def test_a_filter_gives_those_for_which_all_of_it_holds(wanted: VmFilter, names: str):
    ann = Identity("ann", groups=frozenset({"dev"}))
    assert [vm.name for vm in selected(VMS, wanted, ann)] == names.split()


def test_mine_is_what_the_caller_owns():
    assert selected(VMS, VmFilter(mine=True), Identity("eve")) == ()
    assert [vm.name for vm in selected(VMS, VmFilter(mine=True), Identity("bob"))] == ["db", "ci"]


@pytest.mark.parametrize("tags", ["", "[]", "{", '{"a": 1}', "null"])
def test_tags_that_are_no_object_of_strings_are_refused(tags: str):
    with pytest.raises(Invalid, match="tags"):
        VmFilter(tags=tags)
