from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Conflict, Invalid, NotFound
from atoll.model.image_name import check_free, check_image_path, meant_by

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.lists(st.sampled_from(["debian", "12", "13", "x"]), min_size=1, max_size=3).map("/".join)


def at(day: int) -> datetime:
    return FIRST + timedelta(days=day)


@pytest.mark.parametrize("name", ["web", "debian/12/2026-11-15", "a.b_c-d/0", "/".join("abcdefgh")])
def test_a_name_is_a_path_of_plain_words(name: str):
    assert check_image_path("image", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/..",
        "a/./b",
        "A",
        "a b",
        "a\n",
        "a..b",
        "a" * 129,
        "/".join("abcdefghi"),
    ],
)
def test_other_names_are_refused(name: str):
    with pytest.raises(Invalid, match="image"):
        check_image_path("image", name)


def test_a_folder_means_its_newest_image_at_any_depth():
    created = {"debian/12/a": at(1), "debian/12/b": at(3), "debian/13/a": at(2), "debian-x/z": at(9)}
    assert meant_by("debian", created) == "debian/12/b"
    assert meant_by("debian/13", created) == "debian/13/a"
    assert meant_by("debian/12/a", created) == "debian/12/a"


def test_of_two_of_one_moment_the_last_by_name_is_meant():
    assert meant_by("d", {"d/a": at(1), "d/b": at(1)}) == "d/b"


def test_a_name_that_means_nothing_is_not_found():
    with pytest.raises(NotFound, match="debian/1"):
        meant_by("debian/1", {"debian/12/a": at(1)})


def test_a_name_is_an_image_or_a_folder():
    check_free("debian/12/b", ["debian/12/a", "debian/12/b"])
    with pytest.raises(Conflict, match="folder"):
        check_free("debian/12", ["debian/12/a"])
    with pytest.raises(Conflict, match="is an image"):
        check_free("debian/12/a", ["debian/12"])


@given(st.dictionaries(NAMES, st.integers(0, 5).map(at), max_size=5), NAMES)
def test_what_a_name_means_is_there_and_nothing_in_it_is_newer(created: dict[str, datetime], name: str):
    inside = [one for one in created if one == name or one.startswith(f"{name}/")]
    if not inside:
        with pytest.raises(NotFound):
            meant_by(name, created)
        return
    meant = meant_by(name, created)
    assert meant in inside
    assert meant == name or all(created[one] <= created[meant] for one in inside)
