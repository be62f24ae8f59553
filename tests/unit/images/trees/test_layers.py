from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.images.objects import hashed
from atoll.images.trees.layers import MOST_LAYERS, Layer, names_of, stacked, tree_of
from atoll.model.tree import Directory, Entry, HardLink, Symlink, check_tree
from trees import ROOT_DIRECTORY, entry_lists, file_of

ONE, TWO = hashed(b"one"), hashed(b"two")


def folder(path: str, mode: int = 0o755) -> Directory:
    return Directory(path=path, mode=mode)


def layer(*entries: Entry, implied: tuple[str, ...] = ()) -> Layer:
    return Layer((ROOT_DIRECTORY, *entries), frozenset(implied))


def paths(*layers: Layer) -> list[str]:
    return [entry.path for entry in stacked(layers)[1:]]


LOWER = layer(folder("d"), file_of("d/a", ONE), file_of("d/b", ONE), file_of("x", ONE))


@given(entry_lists())
def test_one_layer_is_its_tree(tree: tuple[Entry, ...]):
    assert stacked([Layer(tree)]) == tree
    assert tree_of(names_of(tree)) == tree


@given(st.lists(entry_lists(), min_size=1, max_size=4))
def test_layers_make_a_tree_with_all_of_the_uppermost_in_it(trees: list[tuple[Entry, ...]]):
    found = stacked([Layer(tree) for tree in trees])
    check_tree(found)
    made, top = names_of(found), names_of(trees[-1])
    assert {path: made[path] for path in top}.keys() == top.keys()
    assert all(type(made[path]) is type(inode) for path, inode in top.items())
    assert made.keys() <= {path for tree in trees for path in names_of(tree)}


def test_a_file_hides_the_one_below_it_and_directories_are_merged():
    upper = layer(folder("d", 0o700), file_of("d/a", TWO), file_of("d/c", TWO))
    found = stacked([LOWER, upper])
    assert found[1:] == (
        folder("d", 0o700),
        file_of("d/a", TWO),
        file_of("d/b", ONE),
        file_of("d/c", TWO),
        file_of("x", ONE),
    )


def test_a_whiteout_takes_away_what_is_below_and_not_what_is_beside_it():
    assert paths(LOWER, layer(folder("d"), file_of("d/.wh.a"))) == ["d", "d/b", "x"]
    assert paths(LOWER, layer(file_of(".wh.d"))) == ["x"]
    assert paths(LOWER, layer(file_of(".wh.d"), folder("d"), file_of("d/n"))) == ["d", "d/n", "x"]
    assert paths(LOWER, layer(file_of(".wh.nothing"))) == ["d", "d/a", "d/b", "x"]


def test_an_opaque_directory_has_nothing_from_below():
    upper = layer(folder("d"), file_of("d/.wh..wh..opq"), file_of("d/n"))
    assert paths(LOWER, upper) == ["d", "d/n", "x"]


def test_a_file_over_a_directory_takes_all_that_is_in_it():
    assert paths(LOWER, layer(file_of("d", TWO))) == ["d", "x"]
    assert paths(LOWER, layer(Symlink(path="d", mode=0o777, target="x"))) == ["d", "x"]


def test_a_directory_that_is_only_implied_keeps_the_facts_of_the_one_below():
    found = stacked([layer(folder("d", 0o1777)), layer(folder("d"), file_of("d/n"), implied=("d",))])
    assert found[1:] == (folder("d", 0o1777), file_of("d/n"))


def test_a_name_through_a_link_of_a_layer_below_is_refused():
    lower = layer(Symlink(path="lib", mode=0o777, target="usr/lib"), folder("usr"), folder("usr/lib"))
    upper = layer(folder("lib"), file_of("lib/x"), implied=("lib",))
    with pytest.raises(Invalid, match="'lib': is a directory in one layer, and a symbolic link"):
        stacked([lower, upper])
    assert paths(lower, layer(folder("lib"), file_of("lib/x"))) == ["lib", "lib/x", "usr", "usr/lib"]


def test_a_second_name_has_the_file_when_the_first_is_hidden():
    lower = layer(file_of("a", ONE), HardLink(path="b", to="a"), HardLink(path="c", to="a"))
    assert stacked([lower, layer(file_of("a", TWO))])[1:] == (
        file_of("a", TWO),
        file_of("b", ONE),
        HardLink(path="c", to="b"),
    )


def test_layers_are_so_many_at_most_and_whiteouts_have_names():
    with pytest.raises(Invalid, match="layers"):
        stacked([LOWER] * (MOST_LAYERS + 1))
    for name in (".wh.", ".wh...", ".wh.."):
        with pytest.raises(Invalid, match="layer"):
            stacked([layer(file_of(name))])
