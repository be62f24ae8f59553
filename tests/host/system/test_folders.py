"""Folders are opened without links, and known by what they are, whatever mounts lead to them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from atoll.errors import Conflict
from atoll.system import folders, libc, mounts


def test_a_link_anywhere_on_the_way_is_refused_and_the_folder_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    assert folders.look(tmp_path / "real/sub").path == tmp_path / "real/sub"
    for path in ("link", "link/sub"):
        with pytest.raises(Conflict, match="symbolic link") as refusal:
            folders.look(tmp_path / path)
        assert str((tmp_path / path).resolve()) in refusal.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(Conflict, match="no folder"):
        folders.look(tmp_path / "file")
    with pytest.raises(Conflict, match="is gone"):
        folders.look(tmp_path / "none")


def test_what_is_forbidden_is_known_behind_another_mount_of_it(tmp_path: Path) -> None:
    forbidden, place = tmp_path / "own", tmp_path / "place"
    (forbidden / "deep/er").mkdir(parents=True)
    place.mkdir()

    def look() -> list[str]:
        refused = []
        for source, path in (
            (forbidden, place),
            (forbidden, place / "deep/er"),
            (tmp_path, place),
        ):
            libc.mount(str(source), str(place), None, libc.MS_BIND)
            try:
                folders.look(path, (forbidden,))
            except Conflict as error:
                refused.append(error.brief)
            libc.unmount(str(place))
        return refused

    refused = mounts.private(look)
    assert len(refused) == 3, refused
    assert all("the host's own" in one for one in refused)


def test_a_place_in_somebody_elses_tree_is_made_for_them_and_never_through_a_link(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    with folders.made_beneath(tree, PurePosixPath("/a/b"), 1234) as place:
        assert os.fstat(place).st_ino == (tree / "a/b").stat().st_ino
    assert (tree / "a").stat().st_uid == (tree / "a/b").stat().st_gid == 1234
    (tree / "out").symlink_to(outside)
    (tree / "up").symlink_to("../outside")
    (tree / "file").touch()
    for path in ("/out/x", "/out", "/up/x", "/file/x"):
        with pytest.raises(Conflict), folders.made_beneath(tree, PurePosixPath(path), 1234):
            pass
    assert not list(outside.iterdir())
