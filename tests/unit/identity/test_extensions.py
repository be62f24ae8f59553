from __future__ import annotations

import contextlib
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid, Malformed
from atoll.identity import extensions
from atoll.identity.extensions import (
    decode_groups,
    decode_limit,
    decode_methods,
    encode_groups,
    encode_limit,
    encode_methods,
)

# What Go's asn1.Marshal([]string{"ops", "web_team"}) writes: '_' is not in the alphabet of PrintableString.
FROM_GO = bytes.fromhex("300f" + "1303" + b"ops".hex() + "0c08" + b"web_team".hex())

groups = st.frozensets(
    st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=60), max_size=40
)
word = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=20)
methods = st.frozensets(
    st.one_of(st.just("*"), st.builds("{}.{}".format, word, st.one_of(st.just("*"), word)))
)


def test_groups_are_encoded_as_keymaster_encodes_them():
    assert encode_groups(["web_team", "ops"]) == FROM_GO


def test_groups_of_keymaster_are_read():
    assert decode_groups(FROM_GO) == {"ops", "web_team"}


def test_ia5_strings_are_read_as_go_reads_them():
    assert decode_groups(bytes.fromhex("3005" + "1603" + b"ops".hex())) == {"ops"}


def test_all_methods_are_written_in_the_form_that_other_readers_take():
    assert encode_methods(["*"]) == bytes.fromhex("3005" + "0c03" + b"*.*".hex())
    assert decode_methods(encode_methods(["*"])) == {"*"}


@given(groups)
def test_groups_survive_the_round_trip(names: frozenset[str]):
    assert decode_groups(encode_groups(names)) == names


@given(methods)
def test_methods_survive_the_round_trip(names: frozenset[str]):
    assert decode_methods(encode_methods(names)) == names


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "truncated"),
        (b"\x30", "truncated"),
        (b"\x31\x00", "tag 0x31"),
        (b"\x30\x00\x00", "1 extra bytes"),
        (b"\x30\x05\x13\x03op", "goes past its end"),
        (b"\x30\x80\x00\x00", "a length of 0 bytes"),
        (b"\x30\x81\x05\x13\x03ops", "shortest form"),
        (b"\x30\x85\x00\x00\x00\x00\x00", "a length of 5 bytes"),
        (b"\x30\x03\x02\x01\x05", "is not a string"),
        (b"\x30\x04\x0c\x02\xc3\x28", "not utf-8"),
        (b"\x30\x04\x13\x02\xc3\xa9", "not ascii"),
        (b"\x30\x02\x0c\x00", "empty"),
        (b"\x30\x04\x0c\x02a\n", "not printable"),
        (b"\x30\x02\x1f\x00", "several bytes"),
    ],
)
def test_malformed_der_is_refused_with_the_reason(value: bytes, why: str):
    with pytest.raises(Malformed, match=why):
        decode_groups(value)


@pytest.mark.parametrize("method", ["create", "vm.", ".create", "vm.create.now", "*"])
def test_a_method_that_is_not_noun_and_verb_is_refused(method: str):
    with pytest.raises(Malformed, match=r"is not noun\.verb"):
        decode_methods(encode_groups([method]))


def test_oversized_extensions_are_refused_in_both_directions():
    too_many = [f"g{number}" for number in range(extensions.MAX_ENTRIES + 1)]
    with pytest.raises(Invalid, match="at most 1024"):
        encode_groups(too_many)
    with pytest.raises(Invalid, match="at most 256 bytes"):
        encode_groups(["x" * 257])
    with pytest.raises(Invalid, match="at most 65536"):
        encode_groups([f"{number:04}" + "x" * 200 for number in range(1000)])
    with pytest.raises(Malformed, match="at most 65536"):
        decode_groups(b"\x30" * (extensions.MAX_BYTES + 1))
    with pytest.raises(Malformed, match="more than 1024 entries"):
        decode_groups(b"\x30\x82\x0c\x03" + b"\x13\x01a" * 1025)
    with pytest.raises(Malformed, match="an entry of 257 bytes"):
        decode_groups(b"\x30\x82\x01\x05\x13\x82\x01\x01" + b"a" * 257)


def mutated(chance: random.Random, value: bytes) -> bytes:
    blob = bytearray(value)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(blob))
        match chance.randrange(4):
            case 0:
                blob[at] = chance.randrange(256)
            case 1:
                blob[at] ^= 1 << chance.randrange(8)
            case 2:
                blob.insert(at, chance.randrange(256))
            case _ if len(blob) > 1:
                del blob[at]
    return bytes(blob)


def test_thirty_thousand_random_and_mutated_blobs_give_names_or_our_error():
    chance = random.Random(7)
    seeds = [FROM_GO, encode_methods(["vm.*", "node.show"]), encode_groups([f"group-{n}" for n in range(30)])]
    read = refused = 0
    for number in range(30_000):
        blob = (
            chance.randbytes(chance.randrange(40))
            if number % 3 == 0
            else mutated(chance, chance.choice(seeds))
        )
        for decode in (decode_groups, decode_methods):
            try:
                names = decode(blob)
            except Malformed:
                refused += 1
            else:
                read += 1
                assert all(name and name.isprintable() for name in names)
    assert read > 1000
    assert refused > 1000


@given(st.binary(max_size=200))
def test_any_bytes_give_names_or_our_error(blob: bytes):
    with contextlib.suppress(Malformed):
        assert all(decode_groups(blob))


@given(methods)
def test_a_limit_survives_the_round_trip_an_empty_one_too(names: frozenset[str]):
    assert decode_limit(encode_limit("*.*" if name == "*" else name for name in names)) == names


@pytest.mark.parametrize("value", [b"", b"\x30\x01", bytes.fromhex("3004" + "1302" + b"vm".hex())])
def test_a_limit_that_cannot_be_read_is_an_error_and_not_the_absence_of_one(value: bytes):
    with pytest.raises(Malformed):
        decode_limit(value)
