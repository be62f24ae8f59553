from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.model.size import parse_bytes, parse_mib, parse_milli_cpus, show_mib


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1KiB", 1024),
        ("1K", 1024),
        ("128MiB", 128 << 20),
        ("2G", 2 << 30),
        ("512m", 512 << 20),
        ("2gb", 2 << 30),
        ("1MB", 1 << 20),
        ("4Gi", 4 << 30),
        ("1.5 GiB", 3 << 29),
        ("1TiB", 1 << 40),
        (" 7B ", 7),
        ("0", 0),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int):
    assert parse_bytes("size", text) == size


BAD = [
    "",
    "MiB",
    "-1",
    "1e3",
    "1XiB",
    "1 2",
    "\uff11",
    "0x10",
    "1,5GiB",
    "1.GiB",
    "9" * 16,
    "1iB",
]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("parse", [parse_bytes, parse_mib], ids=["bytes", "mib"])
def test_what_is_no_size_is_refused(parse, text: str):
    with pytest.raises(Invalid, match="memory"):
        parse("memory", text)


@given(st.text())
def test_any_text_is_a_size_or_is_refused(text: str):
    for parse in (parse_bytes, parse_mib, parse_milli_cpus):
        with contextlib.suppress(Invalid):
            assert parse("field", text) >= 0


@pytest.mark.parametrize("text", ["128", "1.5", " 4 "])
def test_a_bare_number_is_refused_with_what_it_may_mean(text: str):
    with pytest.raises(Invalid, match="has no unit") as refusal:
        parse_mib("memory", text)
    assert refusal.value.hint == f"write {text.strip()}M or {text.strip()}G"


def test_nothing_needs_no_unit():
    assert parse_mib("memory", "0") == 0


@pytest.mark.parametrize("text", ["1KiB", "1.0001MiB"])
def test_less_than_a_mib_cannot_be_asked_for(text: str):
    with pytest.raises(Invalid, match="whole number of MiB"):
        parse_mib("memory", text)


@given(st.integers(0, 16 << 20))
def test_what_is_shown_reads_back_as_the_same_size(mib: int):
    assert parse_mib("memory", show_mib(mib)) == mib


@given(st.integers(0, 999_999))
def test_a_size_in_bytes_reads_back(size: int):
    assert parse_bytes("size", str(size)) == size
    assert parse_bytes("size", f"{size}B") == size


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("2", 2000),
        ("0.5", 500),
        ("250m", 250),
        ("0.125", 125),
        ("1.25", 1250),
        ("0", 0),
        ("1.5 cores", 1500),
        ("1 CPU", 1000),
        ("2vcpus", 2000),
    ],
)
def test_cpus_as_people_write_them(text: str, milli: int):
    assert parse_milli_cpus("cpus", text) == milli


@given(st.integers(0, 9_999_999))
def test_thousandths_read_back(milli: int):
    assert parse_milli_cpus("cpus", f"{milli}m") == milli
    assert parse_milli_cpus("cpus", f"{milli // 1000}.{milli % 1000:03}") == milli


@pytest.mark.parametrize("text", ["", "half", "-1", "1.2345", "1,5", "\u0662", "1m2", "m"])
def test_what_is_no_number_of_cpus_is_refused(text: str):
    with pytest.raises(Invalid, match="cpus"):
        parse_milli_cpus("cpus", text)
