from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import AtollError, Invalid, Malformed, TooLarge
from atoll.model.image import Ability, ContainerBoot, DirectBoot, DiskBoot, DiskFormat, Firmware
from atoll.model.manifest import FORMAT, Manifest, Trigger, decode, digest_of, direct, encode
from atoll.model.tree import (
    DEEPEST,
    MOST_ENTRIES,
    PIECE_BYTES,
    CharacterDevice,
    Content,
    Directory,
    Entry,
    File,
    HardLink,
    Hole,
    Piece,
    Symlink,
)
from trees import ROOT_DIRECTORY, entry_lists, file_of, manifest_of

ONE = Piece("1" * 64, 10)
BOOT = DirectBoot("vmlinuz", "initrd", "quiet")
WIDE = {"vmlinuz": Content(10, (ONE,)), "initrd": Content()}


@given(entry_lists(), st.sampled_from([None, (), (Ability.SCRIPT,)]))
def test_a_manifest_is_the_same_once_it_was_encoded_and_decoded(tree: tuple[Entry, ...], honours: Any):
    manifest = manifest_of(
        tree, filter=("var/log",), triggers=(Trigger(("etc",), ("ldconfig",), 2),), honours=honours
    )
    encoded = encode(manifest)
    assert decode(encoded) == manifest
    assert encode(decode(encoded)) == encoded


@given(entry_lists(), entry_lists())
def test_two_manifests_have_one_digest_only_when_they_are_equal(
    one: tuple[Entry, ...], other: tuple[Entry, ...]
):
    first, second = encode(manifest_of(one)), encode(manifest_of(other))
    assert (digest_of(first) == digest_of(second)) == (one == other)


def test_the_digest_of_an_encoding_stays_what_it_is():
    # Digests are in records of nodes and servers: if this one changes, FORMAT does too.
    tree = (ROOT_DIRECTORY, file_of("a", ONE, xattrs={"user.b": b"2", "user.a": b"1"}))
    encoded = encode(manifest_of(tree))
    assert encoded.startswith(b'{"format":1,"kinds":["lxc"],"boot":{"kind":"container","entrypoint":[]')
    assert (
        b'{"kind":"file","path":"a","mode":420,"xattrs":{"user.a":"MQ==","user.b":"Mg=="},"content"'
        in encoded
    )
    assert digest_of(encoded) == "fa659cb3a20f59ba6bd2756eee99f6a5dc3cc40472b618357c62034eda940cbd"


def test_all_ways_to_boot_are_told_apart():
    disk = {"disk": Content(4096, (Hole(4096),))}
    for manifest in (
        Manifest(format=FORMAT, kinds=("qemu",), boot=direct(BOOT), files=WIDE),
        Manifest(
            format=FORMAT, kinds=("qemu",), boot=DiskBoot("disk", Firmware.UEFI, DiskFormat.QCOW2), files=disk
        ),
        manifest_of((ROOT_DIRECTORY,)),
    ):
        assert decode(encode(manifest)) == manifest


def test_what_it_boots_from_is_in_it():
    with pytest.raises(Invalid, match="initrd"):
        Manifest(format=FORMAT, kinds=("qemu",), boot=direct(BOOT), files={"vmlinuz": Content()})
    with pytest.raises(Invalid, match="'root.img'.* is not among the files"):
        Manifest(format=FORMAT, kinds=("qemu",), boot=DiskBoot("root.img"), files=WIDE)
    with pytest.raises(Invalid, match="tree"):
        Manifest(format=FORMAT, kinds=("lxc",), boot=ContainerBoot())


@given(entry_lists())
def test_its_objects_are_those_of_its_files_each_once(tree: tuple[Entry, ...]):
    manifest = manifest_of(tree, files={"kernel": Content(10, (ONE,))})
    expected = {ONE.id} | {
        part.id
        for entry in tree
        if isinstance(entry, File)
        for part in entry.content.parts
        if isinstance(part, Piece)
    }
    assert manifest.objects().keys() == expected


PLAIN = ["", "/etc", "etc/", "a//b", "..", "../a", "a/..", "a/../b", "a/.", "./a", "a\0b"]
BOUNDED = ["x" * 256, "é" * 128, "/".join("a" * (DEEPEST + 1)), "/".join(["x" * 250] * 17), "a\udcff"]


@pytest.mark.parametrize("path", PLAIN + BOUNDED)
def test_a_path_is_relative_plain_and_bounded(path: str):
    with pytest.raises(Invalid, match="path"):
        Directory(path=path, mode=0o755)


@pytest.mark.parametrize(
    "path", [".", "a", "...", "..a", ".hidden/x", "a b\n", "é" * 127, "/".join("a" * DEEPEST)]
)
def test_other_paths_are_taken(path: str):
    assert Directory(path=path, mode=0o755).path == path


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ((file_of("a"),), "begin with"),
        ((ROOT_DIRECTORY, file_of("a"), file_of("a")), "'a': is in the tree twice"),
        ((ROOT_DIRECTORY, file_of("b"), file_of("a")), "'a': is not in its place"),
        ((ROOT_DIRECTORY, file_of("a"), file_of("a/b")), "'a/b': lies below something that is no directory"),
        (
            (ROOT_DIRECTORY, Symlink(path="a", mode=0o777, target="/etc"), file_of("a/passwd")),
            "'a/passwd': lies below something that is no directory",
        ),
        ((ROOT_DIRECTORY, file_of("a/b")), "'a/b': lies below something that is no directory"),
        ((ROOT_DIRECTORY, HardLink(path="a", to="b"), file_of("b")), "hard link 'a'"),
        ((ROOT_DIRECTORY, Directory(path="a", mode=0o755), HardLink(path="b", to="a")), "hard link 'b'"),
        (
            (ROOT_DIRECTORY, file_of("a"), HardLink(path="b", to="a"), HardLink(path="c", to="b")),
            "hard link 'c'",
        ),
    ],
)
def test_what_is_no_tree_is_refused_by_the_name_of_the_path(tree: tuple[Entry, ...], why: str):
    with pytest.raises(Invalid, match=why):
        manifest_of(tree)
    # On decode too, where nobody has built it from checked values.
    entries = msgspec.json.encode(tree)
    empty = encode(manifest_of((ROOT_DIRECTORY,)))
    forged = empty.replace(msgspec.json.encode((ROOT_DIRECTORY,)), entries)
    assert forged != empty
    with pytest.raises(Invalid, match=why):
        decode(forged)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Piece("1" * 63, 1),
        lambda: Piece("G" * 64, 1),
        lambda: Piece("1" * 64, PIECE_BYTES + 1),
        lambda: Piece("1" * 64, 0),
        lambda: Hole(0),
        lambda: Content(11, (ONE,)),
        lambda: Content(2, (Hole(1), Hole(1))),
        lambda: Directory(path="a", mode=0o10000),
        lambda: Directory(path="a", mode=0o755, uid=2**32 - 1),
        lambda: Directory(path="a", mode=0o755, gid=-1),
        lambda: Directory(path="a", mode=0o755, mtime_ns=2**63),
        lambda: Directory(path="a", mode=0o755, xattrs={"trusted.overlay.redirect": b"/"}),
        lambda: Directory(path="a", mode=0o755, xattrs={"user.overlay.opaque": b"y"}),
        lambda: Directory(path="a", mode=0o755, xattrs={"user.a": bytes(64 << 10)}),
        lambda: Directory(path="a", mode=0o755, xattrs={f"user.{n}": b"" for n in range(33)}),
        lambda: Symlink(path="a", mode=0o777, target=""),
        lambda: Symlink(path="a", mode=0o777, target="a" * 4096),
        lambda: Symlink(path="a", mode=0o755, target="b"),
        lambda: CharacterDevice(path="a", mode=0o600, major=0, minor=0),
        lambda: CharacterDevice(path="a", mode=0o600, major=5000),
        lambda: Trigger((), ("true",)),
        lambda: Trigger(("etc",), ()),
        lambda: Trigger(("/etc",), ("true",)),
        lambda: Trigger(("etc",), ("true", "a\0")),
        lambda: Manifest(format=2, kinds=("lxc",), boot=ContainerBoot(), tree=(ROOT_DIRECTORY,)),
        lambda: Manifest(format=1, kinds=(), boot=ContainerBoot(), tree=(ROOT_DIRECTORY,)),
        lambda: Manifest(format=1, kinds=("lxc", "lxc"), boot=ContainerBoot(), tree=(ROOT_DIRECTORY,)),
        lambda: manifest_of((ROOT_DIRECTORY,), files={"../kernel": Content()}),
        lambda: manifest_of((ROOT_DIRECTORY,), filter=("/var",)),
        lambda: ContainerBoot(environment={"A=B": "c"}),
        lambda: ContainerBoot(working_directory="tmp"),
        lambda: ContainerBoot(command=("a\0b",)),
        lambda: ContainerBoot(ports=("http",)),
        lambda: ContainerBoot(stop_signal="TERM; reboot"),
        lambda: ContainerBoot(volumes=tuple(f"/{n}" for n in range(65))),
        lambda: DiskBoot("../disk"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(make: Any):
    with pytest.raises(Invalid):
        make()


@pytest.mark.parametrize(
    "change",
    [
        (b'"format":1', b'"format": 1'),
        (b'"path":".",', b'"path":".","uid":0,'),
        (b'"kind":"directory","path":"."', b'"path":".","kind":"directory"'),
        (b'"agent":false,', b""),
        (b'"format":1', b'"format":1,"more":1'),
        (b'"user.a":"MQ==","user.b":"Mg=="', b'"user.b":"Mg==","user.a":"MQ=="'),
        (b'"path":"a"', b'"path":"\\u0061"'),
    ],
)
def test_bytes_that_say_the_same_in_another_way_are_refused(change: tuple[bytes, bytes]):
    encoded = encode(
        manifest_of((ROOT_DIRECTORY, file_of("a", ONE, xattrs={"user.a": b"1", "user.b": b"2"})))
    )
    forged = encoded.replace(*change)
    assert forged != encoded
    with pytest.raises(Malformed, match="one form"):
        decode(forged)


def test_a_manifest_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(TooLarge):
        decode(b" " * (64 << 20) + b"{}")
    start = b'{"format":1,"tree":['
    values = start + b"{}," * 2_000_000 + b"{}]}"
    entries = start + b'{"kind":"fifo"},' * (MOST_ENTRIES + 2) + b"{}]}"
    tracemalloc.start()
    for data, why in ((values, "lists and maps"), (entries, f"{MOST_ENTRIES + 1} entries")):
        with pytest.raises(TooLarge, match=why):
            decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_tree_has_so_many_entries_at_most():
    tree = (ROOT_DIRECTORY, *(file_of(f"{number:06}") for number in range(MOST_ENTRIES)))
    with pytest.raises(Invalid, match=f"must be at most {MOST_ENTRIES}"):
        manifest_of(tree)


def test_any_bytes_are_a_manifest_or_refused():
    dice = random.Random(9)
    seeds = [
        encode(manifest_of((ROOT_DIRECTORY, file_of("a", ONE), HardLink(path="b", to="a")))),
        encode(Manifest(format=FORMAT, kinds=("qemu",), boot=direct(BOOT), files=WIDE)),
    ]
    words = [
        b"{",
        b"[",
        b'"',
        b"\\",
        b"..",
        b"/",
        b"\xff",
        b"null",
        b"-1",
        b"1e9",
        b'"kind"',
        b"9" * 30,
        b"\\ud800",
    ]
    taken = 0
    tracemalloc.start()
    for _ in range(12_000):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    data[at:at] = dice.choice(words)
                case 2:
                    del data[at : at + dice.randint(1, 40)]
                case 3:
                    data[at:at] = data[dice.randrange(len(data)) :][: dice.randint(1, 80)]
            if not data:
                break
        try:
            manifest = decode(bytes(data))
        except AtollError:
            continue
        taken += 1
        assert encode(manifest) == data
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert taken < 3_000
