from __future__ import annotations

import contextlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.tar_stream import (
    DIRECTORY,
    FILE,
    HARD_LINK,
    MOST_EXTRA,
    MOST_NAME,
    SYMLINK,
    Entry,
    Reader,
    number,
)
from atoll.errors import Malformed

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=120).filter(
    lambda name: name not in (".", "..")
)
FORMATS = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def archive(entries: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for info, content in entries:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def an_entry(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o640
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, target, mode, 1_700_000_000
    return info


def understood(stream: bytes, cut: int = 1000) -> list[tuple[Entry, bytes]]:
    reader, found = Reader(), []
    for start in range(0, len(stream), cut):
        for piece in reader.feed(stream[start : start + cut]):
            if isinstance(piece, Entry):
                found.append([piece, b""])
            else:
                found[-1][1] += piece
    assert reader.ended
    return [(entry, content) for entry, content in found]


@given(st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=5), FORMATS, st.integers(1, 3000))
def test_what_was_put_into_an_archive_comes_out(files: list[tuple[str, bytes]], form: int, cut: int) -> None:
    stream = archive([(an_entry(name), content) for name, content in files], form)
    found = understood(stream, cut)
    assert [(entry.name.decode("utf-8", "surrogateescape"), content) for entry, content in found] == files
    assert all((entry.kind, entry.mode, entry.mtime) == (FILE, 0o640, 1_700_000_000) for entry, _ in found)


def test_links_and_directories_are_what_they_were() -> None:
    long = "d/" + "x" * 200
    found = understood(
        archive(
            [
                (an_entry("d", tarfile.DIRTYPE, mode=0o755), b""),
                (an_entry(long, tarfile.SYMTYPE, "y" * 180), b""),
                (an_entry("h", tarfile.LNKTYPE, "d/f"), b""),
                (an_entry("dev", tarfile.CHRTYPE), b""),
            ]
        )
    )
    assert [entry.kind for entry, _ in found] == [DIRECTORY, SYMLINK, HARD_LINK, "character device"]
    assert (found[1][0].name, found[1][0].target) == (long.encode(), b"y" * 180)


@given(st.binary(max_size=3000))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    reader = Reader()
    with contextlib.suppress(Malformed):
        for piece in reader.feed(data):
            assert isinstance(piece, bytes) or len(piece.name) <= MOST_NAME


@given(st.integers(0, 1535), st.binary(min_size=1, max_size=20), st.booleans())
def test_a_damaged_archive_is_refused_or_understood_and_nothing_else(
    at: int, noise: bytes, mend: bool
) -> None:
    stream = bytearray(archive([(an_entry("a" * 150), b"x" * 600), (an_entry("b"), b"")]))
    stream[at : at + len(noise)] = noise
    if mend:
        for start in range(0, len(stream) - 512, 512):
            block = stream[start : start + 512]
            total = sum(block[:148]) + sum(block[156:]) + 256
            stream[start + 148 : start + 156] = b"%06o\0 " % total
    with contextlib.suppress(Malformed):
        for piece in Reader().feed(bytes(stream)):
            assert isinstance(piece, bytes) or (0 <= piece.mode <= 0o7777 and 0 <= piece.size < 2**60)


def test_a_name_without_end_is_refused_before_it_is_kept() -> None:
    header = an_entry("././@LongLink").tobuf(tarfile.GNU_FORMAT)
    huge = bytearray(header)
    huge[124:136] = b"%011o\0" % (MOST_EXTRA + 1)
    huge[156:157] = b"L"
    total = sum(huge[:148]) + sum(huge[156:]) + 256
    huge[148:156] = b"%06o\0 " % total
    with pytest.raises(Malformed, match="too long"):
        list(Reader().feed(bytes(huge)))


def test_numbers_are_octal_or_binary() -> None:
    assert number(b"0000644\0") == 0o644
    assert number(b"\x80" + (1 << 33).to_bytes(11, "big")) == 1 << 33
    for wrong in (b"9", b"-1", b"\x80" + b"\xff" * 11):
        with pytest.raises(Malformed):
            number(wrong)
