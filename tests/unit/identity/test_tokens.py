from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Malformed
from atoll.identity.tokens import MAX_ADDRESSES, MAX_TOKEN, PREFIX, Token, looks_like_one, read, write

octet = st.integers(0, 255)
addresses = st.one_of(
    st.builds("{}.{}.{}.{}:{}".format, octet, octet, octet, octet, st.integers(1, 65535)),
    st.builds("[2001:db8::{:x}]:{}".format, octet, st.integers(1, 65535)),
    st.from_regex(r"[a-z0-9]{1,20}(\.[a-z0-9]{1,20}){0,3}", fullmatch=True),
)
tokens = st.builds(
    Token,
    st.lists(addresses, min_size=1, max_size=MAX_ADDRESSES).map(tuple),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=24, max_size=24),
)
SAMPLE = Token(("192.0.2.7:6976",), bytes(32), bytes(8), bytes(range(24)))


@given(tokens)
def test_a_token_says_what_it_was_written_with(token):
    text = write(token)
    assert read(text) == token
    assert looks_like_one(text)
    assert text.isascii()
    assert "/" not in text
    assert "=" not in text


def test_a_token_that_a_terminal_broke_into_lines_is_read():
    text = write(SAMPLE)
    assert read(f"  {text[:40]}\n{text[40:80]}\r\n  {text[80:]}\n") == SAMPLE


def test_a_token_for_one_address_is_short_enough_to_be_dictated_into_a_chat():
    assert len(write(SAMPLE)) < 160


@given(tokens, st.data())
def test_a_token_that_was_cut_or_changed_is_refused_and_never_quoted(token, data):
    text = write(token)
    place = data.draw(st.integers(len(PREFIX), len(text) - 1))
    other = data.draw(st.sampled_from("ABCabc019_-"))
    broken = data.draw(st.sampled_from([text[:place], text[:place] + other + text[place + 1 :]]))
    if broken == text:
        return
    # The last character may have bits that say nothing.
    with contextlib.suppress(Malformed):
        assert read(broken) == token
        return
    with pytest.raises(Malformed) as refusal:
        read(broken)
    assert broken[len(PREFIX) + 8 :] not in refusal.value.brief + refusal.value.hint or len(broken) < 20


@given(st.one_of(st.text(max_size=300), st.binary(max_size=200).map(lambda data: data.decode("latin-1"))))
def test_whatever_is_given_is_a_token_or_malformed(text):
    for word in (text, PREFIX + text):
        with contextlib.suppress(Malformed):
            assert isinstance(read(word), Token)


@given(st.binary(max_size=200))
def test_whatever_is_packed_is_a_token_or_malformed(packed):
    import base64
    import hashlib

    data = packed + hashlib.sha256(packed).digest()[:4]
    with contextlib.suppress(Malformed):
        assert isinstance(read(PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")), Token)


def test_a_token_has_a_length_that_it_does_not_exceed():
    with pytest.raises(Malformed, match="not whole"):
        read(PREFIX + "A" * MAX_TOKEN)


def test_a_token_shows_nothing_of_its_secret():
    assert SAMPLE.secret.hex() not in repr(SAMPLE)
    assert str(SAMPLE.secret) not in repr(SAMPLE)
