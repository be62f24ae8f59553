"""Trees from a directory to objects and back, with all that a root file system can have in it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import AtollError, Conflict, HostFailure, Invalid
from atoll.images.objects import Damaged, Intake, Objects, hashed, open_objects
from atoll.images.trees import scanning
from atoll.images.trees.archives import Limits, read_archive
from atoll.images.trees.scanning import scan, scan_file
from atoll.images.trees.tarring import tar_stream
from atoll.images.trees.unpacking import remove_parts, unpack, write_content
from atoll.model.manifest import decode, encode
from atoll.model.tree import PIECE_BYTES, CharacterDevice, Directory, Entry, File, HardLink, Hole, Symlink
from small_disks import small_disk
from trees import ROOT_DIRECTORY, file_of, manifest_of

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
"""cap_net_raw, as setcap writes it."""


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    opened = open_objects(tmp_path / "objects")
    yield opened
    opened.close()


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    """A little of everything."""
    root = tmp_path / "root"
    root.mkdir(0o755)
    for place in ("bin", "etc", "dev", "home/ann", "var/empty"):
        (root / place).mkdir(parents=True)
    (root / "bin/ping").write_bytes(os.urandom(5000))
    os.setxattr(root / "bin/ping", "security.capability", CAPABILITY)
    (root / "bin/su").write_bytes(b"#!/bin/sh\n")
    os.chown(root / "bin/su", 0, 12)
    (root / "bin/su").chmod(0o6755)
    os.link(root / "bin/su", root / "etc/su")
    os.symlink("/etc/alternatives/vi", root / "bin/vi")
    os.link(root / "bin/vi", root / "bin/view", follow_symlinks=False)
    os.chown(root / "bin/vi", 5, 6, follow_symlinks=False)
    os.mknod(root / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (root / "dev/null").chmod(0o666)
    os.mknod(root / "dev/sda", stat.S_IFBLK | 0o660, os.makedev(8, 0))
    os.mkfifo(root / "dev/initctl", 0o600)
    (root / "home/ann/Főtanúsítvány with a blank").write_bytes(b"x" * 70_000)
    os.setxattr(root / "home/ann", "user.note", b"\0\xff binary")
    os.chown(root / "home/ann", 1000, 1000)
    (root / "home/ann").chmod(0o1770)
    (root / "etc/empty").touch()
    (root / "etc/zeros").write_bytes(bytes(100_000))
    with (root / "var/sparse").open("wb") as sparse:
        sparse.seek(3 * PIECE_BYTES + 4096)
        sparse.write(b"island" * 1000)
        sparse.truncate(9 * PIECE_BYTES + 5)
    (root / "var/large").write_bytes(os.urandom(2 * PIECE_BYTES + 17))
    for path in [*root.rglob("*"), root]:
        os.utime(path, ns=(1, 1_700_000_000_123_456_789 + path.name.__len__()), follow_symlinks=False)
    return root


def facts(root: Path) -> dict[str, object]:
    """All that can be told of what is in a tree, by other means than ours."""
    found: dict[str, object] = {}
    nodes: dict[int, str] = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        content: object = None
        if kind == stat.S_IFREG:
            content = path.read_bytes()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        names = [] if kind == stat.S_IFLNK else os.listxattr(path)
        found[str(path.relative_to(root))] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_rdev,
            content,
            {name: os.getxattr(path, name) for name in names},
            kind != stat.S_IFDIR and nodes.setdefault(status.st_ino, str(path.relative_to(root))),
        )
    return found


def taken(root: Path, objects: Objects) -> tuple[Entry, ...]:
    with Intake(objects) as intake:
        return scan(root, intake.take)


def test_a_tree_is_the_same_after_it_was_a_manifest_and_objects(
    everything: Path, objects: Objects, tmp_path: Path
) -> None:
    tree = decode(encode(manifest_of(taken(everything, objects)))).tree
    before = facts(everything)
    unpack(tree, objects.get_many, tmp_path / "again")
    assert facts(tmp_path / "again") == before
    assert scan(tmp_path / "again", hashed) == tree
    kinds = {type(entry) for entry in tree}
    assert {Directory, File, HardLink, Symlink, CharacterDevice} < kinds
    sparse = (tmp_path / "again/var/sparse").stat()
    assert sparse.st_size == 9 * PIECE_BYTES + 5
    assert sparse.st_blocks * 512 < PIECE_BYTES
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_tree_is_the_same_after_it_was_an_archive_that_tar_unpacked(
    everything: Path, objects: Objects, tmp_path: Path
) -> None:
    tree = taken(everything, objects)
    archive = tmp_path / "everything.tar"
    with archive.open("wb") as file:
        for part in tar_stream(tree, objects.get_many):
            file.write(part)
    (tmp_path / "again").mkdir()
    options = ["--xattrs", "--xattrs-include=*", "--same-owner", "-p", "--numeric-owner"]
    subprocess.run(["tar", "-C", tmp_path / "again", *options, "-xf", archive], check=True)
    assert facts(tmp_path / "again") == facts(everything)
    with archive.open("rb") as file:
        assert read_archive(file, hashed, Limits(devices=True)) == tree


def test_an_archive_that_tar_made_is_the_tree_that_it_was_made_of(everything: Path, tmp_path: Path) -> None:
    archive = tmp_path / "everything.tar"
    options = ["--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner"]
    subprocess.run(["tar", "-C", everything, *options, "-cf", archive, "."], check=True)
    with archive.open("rb") as file:
        assert read_archive(file, hashed, Limits(devices=True)) == scan(everything, hashed)


def test_a_disk_is_cut_alike_whether_it_is_sparse_or_not_and_comes_back_sparse(
    everything: Path, objects: Objects, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.write_bytes((everything / "var/sparse").read_bytes())
    with Intake(objects) as intake:
        content = scan_file(everything / "var/sparse", intake.take)
    assert scan_file(full, hashed) == content
    assert sum(part.size for part in content.parts if isinstance(part, Hole)) > 8 * PIECE_BYTES
    again = tmp_path / "again"
    descriptor = os.open(again, os.O_RDWR | os.O_CREAT, 0o600)
    write_content(descriptor, content, objects.get_many(piece.id for piece in content.pieces()))
    os.close(descriptor)
    assert again.read_bytes() == full.read_bytes()
    assert again.stat().st_blocks * 512 < PIECE_BYTES


def test_a_second_version_brings_only_what_changed(everything: Path, objects: Objects) -> None:
    taken(everything, objects)
    before = {kept.id for kept in objects.list()}
    (everything / "etc/motd").write_bytes(b"welcome")
    (everything / "bin/ping").chmod(0o700)
    taken(everything, objects)
    assert {kept.id for kept in objects.list()} - before == {hashed(b"welcome").id}


def test_sockets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "root/s"))
        assert [entry.path for entry in scan(tmp_path / "root", hashed)] == ["."]


def test_a_link_at_the_place_of_the_root_is_not_followed(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(everything)
    with pytest.raises(AtollError, match="scanning"):
        scan(tmp_path / "link", hashed)


def test_a_file_that_changes_while_it_is_read_is_told_by_name(everything: Path) -> None:
    def take(data: bytes):
        if len(data) == PIECE_BYTES:
            with (everything / "var/large").open("ab") as file:
                file.write(b"more")
        return hashed(data)

    with pytest.raises(Conflict, match="var/large: it changed"):
        scan(everything, take)


def test_a_file_that_is_cut_short_while_it_is_read_is_told_by_name(everything: Path) -> None:
    def take(data: bytes):
        if len(data) == PIECE_BYTES:
            os.truncate(everything / "var/large", 100)
        return hashed(data)

    with pytest.raises(Conflict, match="var/large: it changed"):
        scan(everything, take)


def test_a_directory_that_changes_while_it_is_read_is_told(everything: Path) -> None:
    def take(data: bytes):
        (everything / "bin/new").touch()
        return hashed(data)

    with pytest.raises(Conflict, match="it changed while it was read"):
        scan(everything, take)


def test_a_tree_that_others_turn_into_links_is_never_followed_out_of(tmp_path: Path) -> None:
    """A directory is swapped for a link to what is not the tree's, and back, as fast as it goes."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    (root / "d/name").write_bytes(b"inside")
    outside.mkdir()
    (outside / "name").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(root / "d", tmp_path / "aside")
            os.rename(tmp_path / "link", root / "d")
            os.rename(root / "d", tmp_path / "link")
            os.rename(tmp_path / "aside", root / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    secret, seen = hashed(b"secret").id, set()
    try:
        for _ in range(1000):
            try:
                tree = scan(root, hashed)
            except AtollError:
                continue
            seen |= {
                piece.id for entry in tree if isinstance(entry, File) for piece in entry.content.pieces()
            }
    finally:
        over.set()
        thread.join()
    assert secret not in seen


def test_what_is_mounted_in_a_tree_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path, 12) as place, pytest.raises(Conflict, match=f"mounted at {place.name!r}"):
        scan(tmp_path, hashed)


def test_a_name_that_is_no_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    os.close(os.open(os.fsencode(tmp_path / "root") + b"/caf\xe9", os.O_CREAT))
    with pytest.raises(Invalid, match="UTF-8"):
        scan(tmp_path / "root", hashed)


def test_a_tree_that_is_too_deep_is_told(tmp_path: Path) -> None:
    place = tmp_path / "root"
    for _ in range(140):
        place = place / "d"
    place.mkdir(parents=True)
    with pytest.raises(Invalid, match="levels deep"):
        scan(tmp_path / "root", hashed)


def test_a_tree_of_too_much_is_told_before_all_of_it_was_read(
    everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MOST_ENTRIES", 12)
    with pytest.raises(Invalid, match="more than 12 entries"):
        scan(everything, hashed)
    monkeypatch.setattr(scanning, "MOST_ENTRIES", 1000)
    monkeypatch.setattr(scanning, "LARGEST_TREE", 500)
    with pytest.raises(Invalid, match="more than 500 bytes"):
        scan(everything, hashed)


def test_nothing_is_unpacked_over_something(everything: Path, objects: Objects, tmp_path: Path) -> None:
    tree = taken(everything, objects)
    (tmp_path / "there").symlink_to(everything)
    with pytest.raises(Conflict, match="something is there already"):
        unpack(tree, objects.get_many, tmp_path / "there")


def test_a_flipped_bit_is_noticed_before_there_is_a_tree(
    everything: Path, objects: Objects, tmp_path: Path
) -> None:
    tree = taken(everything, objects)
    victim = hashed((everything / "bin/ping").read_bytes()).id
    path = tmp_path / "objects" / victim[:2] / victim
    data = bytearray(path.read_bytes())
    data[100] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(Damaged, match=victim):
        unpack(tree, objects.get_many, tmp_path / "again")
    with pytest.raises(Damaged, match=victim):
        list(tar_stream(tree, objects.get_many))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["objects", "root"]


def test_a_full_disk_leaves_no_tree(everything: Path, objects: Objects, tmp_path: Path) -> None:
    tree = taken(everything, objects)
    with small_disk(tmp_path, 12) as place:
        with pytest.raises(HostFailure, match="'var/large': No space left"):
            unpack(tree, objects.get_many, place / "tree")
        assert [one.name for one in place.iterdir()] == ["lost+found"]


def test_neither_group_nor_access_of_the_directory_around_it_come_into_a_tree(
    everything: Path, objects: Objects, tmp_path: Path
) -> None:
    around = tmp_path / "around"
    around.mkdir()
    os.chown(around, 0, 77)
    around.chmod(0o2775)
    tree = taken(everything, objects)
    unpack(tree, objects.get_many, around / "tree")
    assert facts(around / "tree") == facts(everything)


def test_an_object_of_another_size_than_the_tree_says_is_refused(objects: Objects, tmp_path: Path) -> None:
    objects.put([(hashed(b"four").id, b"four")])
    wrong = hashed(b"four").__class__(hashed(b"four").id, 5)
    with pytest.raises(HostFailure, match="its image says 5"):
        unpack((ROOT_DIRECTORY, file_of("a", wrong)), objects.get_many, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_what_a_killed_unpacking_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".tree.0a0b0c0d.part/etc").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    remove_parts(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["tree"]
