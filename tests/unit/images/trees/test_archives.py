"""Archives that are sound come in as they are; those that are not are refused by the name of what is wrong."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import resource
import tarfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from msgspec import structs

from atoll.errors import AtollError, Invalid, Malformed, TooLarge
from atoll.images.objects import hashed, id_of
from atoll.images.trees import archives, compression, tar_format
from atoll.images.trees.archives import Limits, read_archive
from atoll.images.trees.tarring import tar_stream
from atoll.model.tree import (
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
    check_tree,
)
from trees import ROOT_DIRECTORY, entry_lists, file_of

DEVICES = Limits(devices=True)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def read(data: bytes, limits: Limits | None = None) -> tuple[Entry, ...]:
    return read_archive(io.BytesIO(data), hashed, limits)


def plain_of(tree: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], dict[str, bytes]]:
    """The same tree with contents of real bytes."""
    kept: dict[str, bytes] = {}
    made: list[Entry] = []
    for entry in tree:
        if isinstance(entry, File):
            data = entry.path.encode() * 3
            kept[id_of(data)] = data
            facts = {"mode": entry.mode, "uid": entry.uid, "gid": entry.gid, "mtime_ns": entry.mtime_ns}
            made.append(file_of(entry.path, hashed(data), xattrs=entry.xattrs, **facts))
        else:
            made.append(entry)
    return tuple(made), kept


@given(entry_lists())
def test_a_tree_that_was_put_into_an_archive_comes_out_as_it_was(drawn: tuple[Entry, ...]):
    tree, kept = plain_of(drawn)
    # Attributes of what is no file and no directory are not in archives: they have none on disk either.
    archive = b"".join(tar_stream(tree, lambda ids: map(kept.__getitem__, ids)))
    found = read(archive, DEVICES)
    expected = [entry if isinstance(entry, File | Directory | HardLink) else bare(entry) for entry in tree]
    assert found == tuple(expected)
    assert b"".join(tar_stream(tree, lambda ids: map(kept.__getitem__, ids))) == archive
    assert len(archive) % 10240 == 0


def bare(entry: Any) -> Entry:
    return structs.replace(entry, xattrs={})


@given(entry_lists())
def test_others_read_our_archives_too(drawn: tuple[Entry, ...]):
    tree, kept = plain_of(drawn)
    archive = b"".join(tar_stream(tree, lambda ids: map(kept.__getitem__, ids)))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = {os.path.normpath(info.name): info for info in opened}
        assert list(found) == [entry.path for entry in tree]
        for entry in tree:
            info = found[entry.path]
            if isinstance(entry, HardLink):
                assert info.islnk()
                continue
            assert (info.uid, info.gid) == (entry.uid, entry.gid)
            assert round(info.mtime * 10**9) == pytest.approx(entry.mtime_ns)
            if isinstance(entry, File):
                assert opened.extractfile(info).read() == entry.path.encode() * 3


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_all_forms_are_read(form: int):
    deep = "/".join(["directory"] * 9) + "/" + "f" * 80
    found = read(tar(member(deep, data=b"x" * 700, mode=0o4755, uid=7, mtime=5), form=form))
    assert found[-1] == file_of(deep, hashed(b"x" * 700), mode=0o4755, uid=7, mtime_ns=5 * 10**9)
    assert all(isinstance(entry, Directory) and entry.mode == 0o755 for entry in found[:-1])


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_targets_and_numbers_of_any_length_are_read(form: int):
    name, target = "n" * 200, "t" * 300
    found = read(tar(member(name, tarfile.SYMTYPE, linkname=target, uid=3_000_000, mtime=2**33), form=form))
    assert found[1] == Symlink(path=name, mode=0o777, target=target, uid=3_000_000, mtime_ns=2**33 * 10**9)


def test_times_are_read_to_the_nanosecond_and_attributes_as_bytes():
    headers = {"mtime": "12.000000003", "SCHILY.xattr.user.a": "é", "SCHILY.xattr.security.selinux": "label"}
    (_, found) = read(tar(member("a", pax_headers=headers)))
    assert found == file_of("a", mtime_ns=12_000_000_003, xattrs={"user.a": "é".encode()})


@pytest.mark.parametrize(
    "compress",
    [
        bytes,
        gzip.compress,
        lzma.compress,
        lambda data: zstandard.ZstdCompressor().compress(data),
        lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(512),
        lambda data: lzma.compress(data[:700]) + lzma.compress(data[700:]),
        lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
    ],
)
def test_it_does_not_matter_what_compressed_it(compress: Callable[[bytes], bytes]):
    data = os.urandom(600_000)
    archive = compress(tar(member("a", data=data), member("b", data=bytes(2 * PIECE_BYTES))))
    found = read(archive)
    assert found[1] == file_of("a", hashed(data))
    for cut_at in (3, len(archive) // 2, len(archive) - 20_000):
        if cut_at > 0:
            with pytest.raises(Malformed):
                read(archive[:cut_at])


def test_what_is_no_archive_is_refused():
    for data in (b"", b"hello", bytes(100), bz2.compress(tar()), b"\x1f\x8bxx", os.urandom(2000)):
        with pytest.raises(Malformed):
            read(data)


def test_a_hard_link_is_a_name_of_the_first_in_order_whichever_came_first():
    link = {"linkname": "./z"}
    found = read(
        tar(
            member("z", data=b"1"), member("b", tarfile.LNKTYPE, **link), member("a", tarfile.LNKTYPE, **link)
        )
    )
    assert found == (
        ROOT_DIRECTORY,
        file_of("a", hashed(b"1")),
        HardLink(path="b", to="a"),
        HardLink(path="z", to="a"),
    )


def test_a_hard_link_may_name_a_hard_link():
    found = read(
        tar(
            member("a", data=b"1"),
            member("b", tarfile.LNKTYPE, linkname="a"),
            member("c", tarfile.LNKTYPE, linkname="b"),
        )
    )
    assert found[2:] == (HardLink(path="b", to="a"), HardLink(path="c", to="a"))


def test_symbolic_links_may_lead_anywhere_since_nobody_follows_them():
    found = read(
        tar(
            member("a", tarfile.SYMTYPE, linkname="/etc/shadow"),
            member("b", tarfile.SYMTYPE, linkname="../.."),
        )
    )
    assert [entry.target for entry in found if isinstance(entry, Symlink)] == ["/etc/shadow", "../.."]


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([member("../evil")], "'../evil': leads out of the tree"),
        ([member("a/../../evil")], "'a/../../evil': leads out of the tree"),
        ([member("/etc/passwd")], "'/etc/passwd': is an absolute name"),
        ([member("a"), member("a")], "'a': is in it twice"),
        ([member("a"), member("./a")], "'a': is in it twice"),
        ([member("d", tarfile.DIRTYPE), member("d/", tarfile.DIRTYPE)], "'d': is in it twice"),
        ([member("a", tarfile.SYMTYPE, linkname="/etc"), member("a/passwd")], "'a/passwd': lies below"),
        ([member("a/passwd"), member("a", tarfile.SYMTYPE, linkname="/etc")], "'a/passwd': lies below"),
        ([member("a"), member("a/b")], "'a/b': lies below"),
        ([member("l", tarfile.LNKTYPE, linkname="/etc/shadow")], "'/etc/shadow': is an absolute name"),
        ([member("l", tarfile.LNKTYPE, linkname="../x")], "'../x': leads out of the tree"),
        ([member("l", tarfile.LNKTYPE, linkname="x")], "'l': is a hard link to 'x'"),
        ([member("l", tarfile.LNKTYPE, linkname="l")], "'l': is a hard link to 'l'"),
        (
            [member("d", tarfile.DIRTYPE), member("l", tarfile.LNKTYPE, linkname="d")],
            "'l': is a hard link to 'd'",
        ),
        (
            [member("x"), member("l", tarfile.LNKTYPE, linkname="x"), member("l/y")],
            "'l/y': lies below",
        ),
        ([member("sda", tarfile.BLKTYPE, devmajor=8)], "'sda': is a device node"),
        ([member("null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "'null': is a device node"),
        ([member("what", b"V")], "'what': is of a kind"),
        ([member("s", tarfile.GNUTYPE_SPARSE)], "'s': is a sparse file"),
        ([member("s", pax_headers={"GNU.sparse.major": "1"})], "'s': is a sparse file"),
        ([member("x" * 256)], "parts of at most 255"),
        ([member("/".join("d" * 200))], "levels deep"),
        ([member("b\udcffd")], "no UTF-8"),
        ([member("a", uid=2**32)], "owner"),
        ([member("a", pax_headers={"SCHILY.xattr.user.a": "x" * (65 << 10)})], "xattrs"),
    ],
)
def test_a_hostile_archive_is_refused_by_name(members: list[Any], named: str):
    form = tarfile.GNU_FORMAT if any("\udcff" in info.name for info, _ in members) else tarfile.PAX_FORMAT
    with pytest.raises(Invalid, match=named.replace("(", r"\(")):
        read(tar(*members, form=form))


def test_devices_come_in_where_they_may_but_for_those_that_hide_files():
    found = read(tar(member("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)), DEVICES)
    assert found[1] == CharacterDevice(path="null", mode=0o666, major=1, minor=3)
    with pytest.raises(Invalid, match="would hide a file"):
        read(tar(member("a", tarfile.CHRTYPE)), DEVICES)


def test_a_bomb_is_refused_before_it_has_cost_anything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "FREE_BYTES", 32 << 20)
    zeros = member("zeros", data=bytes(64 << 20))
    small = Limits(most_bytes=1 << 20)
    archives = [gzip.compress(tar(zeros)), lzma.compress(tar(zeros)), zstandard.compress(tar(zeros))]
    tracemalloc.start()
    for archive in archives:
        with pytest.raises(TooLarge, match="times its size"):
            read(archive)
        with pytest.raises(TooLarge):
            read(archive, small)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_headers_that_go_on_for_ever_are_refused():
    records = tar_format.Member(type=tar_format.RECORDS, name=b"x", size=tar_format.LONGEST_EXTRA // 2 + 512)
    one = tar_format.build(records) + bytes(records.size)
    with pytest.raises(TooLarge, match="headers of more than"):
        read(one + one)
    huge = tar_format.Member(type=tar_format.LONG_NAME, name=b"x", size=8**11 - 1)
    with pytest.raises(TooLarge, match="headers of more than"):
        read(tar_format.build(huge))


def test_an_archive_has_so_many_entries_at_most():
    with pytest.raises(TooLarge, match="more than 5 entries"):
        read(tar(*(member(str(number)) for number in range(6))), Limits(most_entries=5))


def test_names_and_attributes_are_so_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "LARGEST_TREE", 10_000)
    headers = {"SCHILY.xattr.user.a": "x" * 3000}
    read(tar(member("a", pax_headers=headers)))
    with pytest.raises(TooLarge, match="names and attributes"):
        read(tar(*(member(name, pax_headers=headers) for name in "abc")))


def test_a_file_larger_than_a_piece_is_cut_as_it_comes():
    data = os.urandom(PIECE_BYTES + 5)
    (_, found) = read(tar(member("a", data=data)))
    assert isinstance(found, File)
    assert [part.size for part in found.content.parts] == [PIECE_BYTES, 5]
    with pytest.raises(Malformed, match="cut short"):
        read(tar(member("a", data=data))[: PIECE_BYTES // 2])


def seeds() -> list[bytes]:
    many = (
        member("d", tarfile.DIRTYPE, mode=0o755),
        member("d/" + "n" * 120, data=b"x" * 600, pax_headers={"mtime": "1.5", "SCHILY.xattr.user.a": "b"}),
        member("l", tarfile.LNKTYPE, linkname="d/" + "n" * 120),
        member("s", tarfile.SYMTYPE, linkname="../" * 40),
        member("c", tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    forms = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
    plain = [tar(*many, form=form) for form in forms]
    return [*plain, *plain, gzip.compress(plain[0]), lzma.compress(plain[0]), zstandard.compress(plain[0])]


def repaired(data: bytearray) -> bytearray:
    """With sums that are right again, so that what was changed is read."""
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            block = data[at : at + 512]
            block[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return data


def test_any_bytes_are_a_tree_or_refused_in_memory_that_is_bounded():
    dice = random.Random(9)
    originals = seeds()
    words = [
        b"../",
        b"/",
        b"\0",
        b"\xff",
        b"7" * 11,
        b"\x80\xff\xff\xff",
        b"path=",
        b"99999 ",
        b"GNU.sparse.",
        b"size=-1",
    ]
    taken = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(12_000):
        data = bytearray(dice.choice(originals))
        for _ in range(dice.randint(1, 5)):
            at = dice.randrange(len(data))
            match dice.randrange(5):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    word = dice.choice(words)
                    data[at : at + len(word)] = word
                case 2:
                    block = at // 512 * 512
                    data[block:block] = data[dice.randrange(len(data)) // 512 * 512 :][:512]
                case 3:
                    del data[at : at + dice.choice([1, 512])]
                case 4:
                    # A field of a header: sizes, types, links, prefixes.
                    field = at // 512 * 512 + dice.choice([0, 100, 108, 124, 136, 156, 157, 345])
                    data[field : field + 4] = dice.choice(
                        [b"7777", b"\xff" * 4, b"../x", b"1234", b"\0\0\0\0"]
                    )
            data = data or bytearray(1)
        try:
            tree = read_archive(io.BytesIO(bytes(repaired(data))), hashed, DEVICES)
        except AtollError:
            continue
        taken += 1
        check_tree(tree)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib << 10 < compression.MOST_ZSTD_BYTES + (32 << 20)
    assert 100 < taken < 11_000


def test_a_hole_becomes_zeros_in_an_archive():
    data = b"y" * 10
    content = Content(PIECE_BYTES * 2 + 10, (Hole(PIECE_BYTES * 2), hashed(data)))
    tree = (ROOT_DIRECTORY, File(path="disk", mode=0o600, content=content))
    archive = b"".join(tar_stream(tree, lambda ids: (data for _ in ids)))
    assert read(archive) == tree


def test_an_object_of_another_size_than_the_tree_says_ends_the_archive():
    tree = (ROOT_DIRECTORY, file_of("a", Piece("1" * 64, 5)))
    with pytest.raises(AtollError, match="1" * 64):
        b"".join(tar_stream(tree, lambda ids: (b"xxxx" for _ in ids)))
