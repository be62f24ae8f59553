from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Conflict, Denied, Invalid
from atoll.model.checks import NAME_PATTERN
from atoll.model.identity import Identity
from atoll.model.share import Share, ShareMount, check_mounts, is_within, tag_of
from atoll.plan.shares import (
    SYSTEM,
    Owner,
    ShareRules,
    check_allowed,
    check_kind,
    check_mount,
    owner_problem,
    refusal_of,
    users_of,
    with_mounts,
    with_share,
    without_share,
)
from samples import a_vm

DATA = Share("data", "/srv/data", users=("ann",), groups=("web",))
RULES = ShareRules(below=("/srv",), own=("/srv/atoll",))
MOUNT = ShareMount("data", "/data")


@pytest.mark.parametrize(
    "path", ["/etc", "/etc/ssh", "/var", "/var/lib/x", "/home", "/root", "/srv/atoll/vms"]
)
def test_the_hosts_own_is_never_shared(path: str):
    assert refusal_of(path, RULES.own)
    with pytest.raises(Invalid):
        check_allowed(Share("x", path), RULES)


@given(st.sampled_from(SYSTEM), st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), max_size=3))
def test_nothing_in_nor_around_a_directory_of_the_host_is_shared(directory: str, more: list[str]):
    assert refusal_of("/".join([directory, *more]))
    around = directory.rpartition("/")[0]
    assert not around or refusal_of(around)


def test_calls_name_only_what_is_left_to_them():
    check_allowed(DATA, RULES)
    for path in ("/opt/data", "/srvx"):
        with pytest.raises(Denied, match="leaves to its operators: /srv"):
            check_allowed(Share("x", path), RULES)


@pytest.mark.parametrize(
    "path",
    ["data", "/", "/a/", "/a//b", "/a/../b", "/./a", "/a\n", "/proc/1", "/dev", "/tmp/x", "/run/x", "/a b"],
)
def test_places_in_guests_mean_one_thing_and_are_not_the_guests_own(path: str):
    with pytest.raises(Invalid):
        ShareMount("data", path)


@pytest.mark.parametrize("path", ["data", "/", "/a/", "/a//b", "/a/../b", "/a/.", "/a\x00"])
def test_paths_of_the_host_mean_one_thing(path: str):
    with pytest.raises(Invalid):
        Share("data", path)


@pytest.mark.parametrize(
    "other", [ShareMount("data", "/b"), ShareMount("x", "/data"), ShareMount("x", "/data/b")]
)
def test_folders_of_a_vm_are_apart(other: ShareMount):
    with pytest.raises(Invalid):
        check_mounts((MOUNT, other))


def test_a_share_is_for_its_users_its_groups_and_operators():
    for identity, operates in (
        (Identity("ann"), False),
        (Identity("bob", groups=frozenset({"web"})), False),
        (Identity("oper"), True),
    ):
        check_mount(MOUNT, {"data": DATA}, identity, "creating", operates=operates)
    with pytest.raises(Denied, match="it is for ann, group web"):
        check_mount(MOUNT, {"data": DATA}, Identity("bob"), "creating", operates=False)


def test_guests_never_write_as_root():
    assert owner_problem(DATA, Owner(0, 1000))
    assert owner_problem(DATA, Owner(1000, 0))
    assert not owner_problem(DATA, Owner(1000, 1000))
    assert not owner_problem(Share("data", "/srv/data", read_only=True), Owner(0, 0))


def test_a_share_that_is_used_stays_what_it_is():
    vm = a_vm("10.1.0.5", shares=(MOUNT,))
    users = users_of("data", [vm])
    assert users == (vm.name,)
    with pytest.raises(Conflict, match=f"in use by VM {vm.name}"):
        without_share((DATA,), "data", users)
    with pytest.raises(Conflict):
        with_share((DATA,), Share("data", "/srv/other"), users)
    other = Share("data", "/srv/data", everyone=True)
    assert with_share((DATA,), other, users) == (other,)
    assert without_share((DATA,), "data", ()) == ()


def test_kinds_without_folders_refuse_them_with_the_reason():
    vm = a_vm("10.1.0.5", driver="qemu", shares=(MOUNT,))
    with pytest.raises(Conflict, match="kind qemu have no shared folders"):
        check_kind(vm, {"lxc": ""})
    with pytest.raises(Conflict, match="there is no virtiofsd"):
        check_kind(vm, {"qemu": "there is no virtiofsd"})
    check_kind(vm, {"qemu": ""})


def test_a_change_moves_adds_and_removes():
    elsewhere, more = ShareMount("data", "/b"), ShareMount("more", "/more")
    assert with_mounts((MOUNT,), (elsewhere, more), ()) == (elsewhere, more)
    assert with_mounts((MOUNT, more), (), ("data",)) == (more,)


def test_within_is_by_whole_names():
    assert is_within("/a/b", "/a")
    assert not is_within("/ab", "/a")


@given(st.sets(st.from_regex(NAME_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 63), max_size=5))
def test_guests_know_shares_by_tags_that_fit_and_differ(names: set[str]):
    tags = {tag_of(name) for name in names}
    assert len(tags) == len(names)
    assert all(len(tag) <= 36 for tag in tags)
    assert tag_of("data") == "data"
