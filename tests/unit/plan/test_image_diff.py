from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.manifest import Trigger
from atoll.model.path_pattern import PathPatterns
from atoll.model.tree import Directory, Entry, HardLink, Piece, Symlink, check_tree, order_of
from atoll.plan.image_diff import Aspect, TreeDiff, bytes_to_move, differences, due, objects_to_move
from trees import ROOT_DIRECTORY, entry_lists, file_of, manifest_of

ONE, TWO = Piece("1" * 64, 10), Piece("2" * 64, 200)
NOTHING = PathPatterns(())
FILTERS = st.lists(st.sampled_from(["a", "b", "a/*", "**/b", "*.*"]), max_size=2)


def folder(path: str) -> Directory:
    return Directory(path=path, mode=0o755)


def apply(old: tuple[Entry, ...], diff: TreeDiff) -> tuple[Entry, ...]:
    """The tree that an update makes of the old one."""
    made = {entry.path: entry for entry in old}
    for entry in diff.removed:
        del made[entry.path]
    for change in diff.changed:
        assert made[change.old.path] == change.old
        made[change.new.path] = change.new
    for entry in diff.added:
        assert entry.path not in made
        made[entry.path] = entry
    return tuple(sorted(made.values(), key=lambda entry: order_of(entry.path)))


@given(entry_lists(), entry_lists())
def test_the_old_tree_with_its_differences_is_the_new_one(old: tuple[Entry, ...], new: tuple[Entry, ...]):
    assert apply(old, differences(old, new, NOTHING)) == new


@given(entry_lists())
def test_a_tree_does_not_differ_from_itself(tree: tuple[Entry, ...]):
    assert differences(tree, tree, NOTHING).is_empty()


@given(entry_lists(), entry_lists(), FILTERS)
def test_what_a_filter_covers_is_never_touched_nor_left_without_its_directory(
    old: tuple[Entry, ...], new: tuple[Entry, ...], filter_: list[str]
):
    patterns = PathPatterns(filter_)
    diff = differences(old, new, patterns)
    assert not any(map(patterns.covers, diff.paths()))
    after = {entry.path: entry for entry in apply(old, diff)}
    for entry in old:
        if patterns.covers(entry.path):
            assert after[entry.path] == entry
            parts = entry.path.split("/")
            for depth in range(1, len(parts)):
                assert isinstance(after["/".join(parts[:depth])], Directory)


def test_each_aspect_is_told():
    old = (ROOT_DIRECTORY, file_of("a", ONE))
    for aspect, new in {
        Aspect.CONTENT: file_of("a", TWO),
        Aspect.MODE: file_of("a", ONE, mode=0o600),
        Aspect.OWNER: file_of("a", ONE, gid=5),
        Aspect.XATTRS: file_of("a", ONE, xattrs={"user.a": b""}),
        Aspect.TIME: file_of("a", ONE, mtime_ns=1),
        Aspect.KIND: folder("a"),
    }.items():
        (changed,) = differences(old, (ROOT_DIRECTORY, new), NOTHING).changed
        assert changed.aspects == {aspect}


def test_a_link_that_leads_elsewhere_has_another_content():
    old = (ROOT_DIRECTORY, Symlink(path="a", mode=0o777, target="x"), file_of("b"), file_of("c"))
    new = (
        ROOT_DIRECTORY,
        Symlink(path="a", mode=0o777, target="y"),
        file_of("b"),
        HardLink(path="c", to="b"),
    )
    assert [(one.new.path, one.aspects) for one in differences(old, new, NOTHING).changed] == [
        ("a", {Aspect.CONTENT}),
        ("c", {Aspect.KIND}),
    ]


def test_a_directory_stays_for_what_is_left_alone_in_it():
    old = (ROOT_DIRECTORY, folder("var"), folder("var/db"), file_of("var/db/data"), file_of("var/x"))
    diff = differences(old, (ROOT_DIRECTORY,), PathPatterns(["var/db/data"]))
    assert [entry.path for entry in diff.removed] == ["var/x"]
    assert diff.stays == ("var", "var/db")


def test_only_what_is_not_there_is_moved_and_each_object_once():
    new = manifest_of((ROOT_DIRECTORY, file_of("a", ONE), file_of("b", TWO), file_of("c", TWO)))
    assert objects_to_move(new, {ONE.id}) == {TWO.id: 200}
    assert bytes_to_move(new, {ONE.id}) == 200
    assert bytes_to_move(new, {ONE.id, TWO.id}) == 0


@pytest.mark.parametrize(
    ("changed", "commands"),
    [
        (["etc/ssh/sshd_config"], ["restart"]),
        (["usr/lib/libc.so", "etc/ssh/moduli"], ["ldconfig", "restart"]),
        (["home/x"], []),
    ],
)
def test_triggers_are_due_for_what_they_wait_for_in_their_order(changed: list[str], commands: list[str]):
    triggers = [Trigger(("etc/ssh",), ("restart",), 5), Trigger(("usr/lib/*.so",), ("ldconfig",), -1)]
    assert [trigger.command[0] for trigger in due(triggers, changed)] == commands


@given(entry_lists())
def test_drawn_trees_are_trees(tree: tuple[Entry, ...]):
    check_tree(tree)
