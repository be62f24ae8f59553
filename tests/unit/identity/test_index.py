"""The record of what a CA issued: a file that is added to, and survives what crashes leave of it."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import HostFailure
from atoll.identity import index
from atoll.identity.authority import Authority
from atoll.identity.claims import Kind
from atoll.identity.index import Index, IssuedRecord, RevokedRecord, encode, fold
from atoll.system import files

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def issued(number: int, *, ended_days_ago: float = -1) -> IssuedRecord:
    end = NOW - ended_days_ago * DAY
    return IssuedRecord(f"{number:04x}", Kind.USER, f"user{number}", end - DAY, end)


@pytest.fixture
def file(tmp_path: Path) -> Index:
    return Index(tmp_path / "issued.jsonl")


def test_what_was_added_is_read_in_order(file: Index) -> None:
    records = [issued(1), RevokedRecord("0001", NOW, NOW + DAY), issued(2)]
    file.add(*records[:2])
    file.add(records[2])

    assert file.records() == records
    assert file.path.stat().st_mode & 0o777 == 0o600


@given(some.data())
def test_a_last_line_that_was_cut_anywhere_is_gone_and_the_next_one_is_whole(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    file = Index(tmp_path_factory.mktemp("index") / "issued.jsonl")
    before, torn = encode([issued(1), issued(2)]), encode([issued(3)])
    cut = data.draw(some.integers(0, len(torn) - 1))
    file.path.write_bytes(before + torn[:cut])

    assert file.records() == [issued(1), issued(2)]
    file.add(issued(4))
    assert file.records() == [issued(1), issued(2), issued(4)]


def test_a_torn_line_longer_than_a_block_is_repaired(file: Index) -> None:
    file.add(issued(1))
    with file.path.open("ab") as end:
        end.write(b"\0" * 10_000)

    file.add(issued(2))
    assert file.records() == [issued(1), issued(2)]


def test_a_first_line_that_was_cut_is_gone(file: Index) -> None:
    file.path.write_bytes(encode([issued(1)])[:-1])
    assert file.records() == []
    file.add(issued(2))
    assert file.records() == [issued(2)]


def test_a_disk_that_fills_up_leaves_whole_lines(file: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    file.add(issued(1))
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        write(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", full)
        with pytest.raises(HostFailure, match="No space left") as caught:
            file.add(issued(2))
    assert "make room" in caught.value.hint
    assert file.path.read_bytes() == encode([issued(1)])


def test_a_write_that_takes_a_part_is_continued(file: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, content: write(descriptor, content[:7]))

    file.add(issued(1), issued(2))
    assert file.records() == [issued(1), issued(2)]


def test_the_ten_thousandth_certificate_costs_what_the_first_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "ca"
    Authority.create(directory, "test")
    written, read = [0], [0]
    write, read_bytes = os.write, Path.read_bytes

    def counted_write(descriptor: int, content: bytes) -> int:
        written[0] += len(content)
        return write(descriptor, content)

    def counted_read(path: Path) -> bytes:
        content = read_bytes(path)
        read[0] += len(content)
        return content

    def cost() -> tuple[int, int]:
        """Bytes written and read by a command that opens the CA and has a certificate renewed."""
        written[0] = read[0] = 0
        authority = Authority.open(directory)
        authority.renew(authority.issue_user("ann").cert_pem)
        return written[0], read[0]

    monkeypatch.setattr(files.os, "write", counted_write)
    monkeypatch.setattr(Path, "read_bytes", counted_read)
    first = cost()
    files.append_lines(directory / "issued.jsonl", encode(issued(number) for number in range(10_000)))
    last = cost()

    assert first[0] == pytest.approx(last[0], abs=16)
    assert first[1] == pytest.approx(last[1], abs=16)
    assert 0 < last[0] < 1000
    assert len(Authority.open(directory).list_issued()) == 10_004


def test_certificates_that_ended_long_ago_are_forgotten_once_they_are_half_of_a_large_file(
    file: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [issued(number, ended_days_ago=91) for number in range(60)]
    young = [issued(number, ended_days_ago=89) for number in range(60, 100)]
    file.add(*old, *young)
    assert not file.prune(NOW)  # small
    monkeypatch.setattr(index, "PRUNED_ABOVE_BYTES", 100)
    assert not file.prune(NOW - 2 * DAY)
    assert file.prune(NOW)
    assert file.records() == young
    assert not file.prune(NOW)


def test_a_line_that_is_no_record_is_not_forgotten(file: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "PRUNED_ABOVE_BYTES", 100)
    file.path.write_bytes(b"rubbish\n" + encode(issued(n, ended_days_ago=100) for n in range(9)))

    assert file.prune(NOW)
    assert file.path.read_bytes() == b"rubbish\n"
    with pytest.raises(HostFailure, match="line 1 is not a record"):
        file.records()


def test_nothing_is_pruned_where_nothing_was_issued(file: Index) -> None:
    assert not file.prune(NOW)


def test_the_first_revocation_counts() -> None:
    first, second = (RevokedRecord("0001", NOW + days * DAY, NOW + 9 * DAY) for days in (0, 1))
    found, revoked = fold([issued(1), first, second])
    assert (found["0001"].revoked_at, revoked) == (NOW, {"0001": first})


def test_revocations_of_a_ca_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "test")
    ann, bob = authority.issue_user("ann"), authority.issue_user("bob")
    authority.revoke(ann.serial)
    revoked = tmp_path / "ca" / "revoked.jsonl"
    issued_before = (tmp_path / "ca" / "issued.jsonl").open("ab")
    with issued_before:
        issued_before.write(revoked.read_bytes())
    revoked.unlink()

    again = Authority.open(tmp_path / "ca")
    assert (again.is_revoked(int(ann.serial, 16)), again.is_revoked(int(bob.serial, 16))) == (True, False)
    assert [record.revoked_at is None for record in again.list_issued()] == [False, True]
