"""A credential as it comes: its shape, and that nothing shows it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.model.long_lived import MAX_CERTIFICATES, MAX_KEY, LongLivedCredential, from_pem


def block(label: str, body: str = "QUJD") -> str:
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"


CERTIFICATE, KEY = block("CERTIFICATE"), block("PRIVATE KEY", "U0VDUkVU")
GOOD = LongLivedCredential(CERTIFICATE, KEY)


def test_nothing_that_prints_it_shows_it() -> None:
    for shown in (repr(GOOD), str(GOOD), f"{GOOD}", f"{(GOOD,)}", f"{GOOD!r:>40}"):
        assert "U0VDUkVU" not in shown
        assert "QUJD" not in shown


def test_it_travels_as_it_is() -> None:
    assert msgspec.json.decode(msgspec.json.encode(GOOD), type=LongLivedCredential) == GOOD


@pytest.mark.parametrize("label", ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"])
@pytest.mark.parametrize("chain", [1, 3])
def test_a_chain_and_any_usual_kind_of_key_are_taken(label: str, chain: int) -> None:
    assert LongLivedCredential(CERTIFICATE * chain, block(label)).key == block(label)


@pytest.mark.parametrize(
    ("certificate", "key", "says"),
    [
        ("", KEY, "certificate '0 characters': must be PEM"),
        ("QUJD", KEY, "certificate '4 characters': must be PEM"),
        (CERTIFICATE + "more", KEY, "certificate .*: must be PEM"),
        (CERTIFICATE + KEY, KEY, "certificate .*: must be PEM"),
        (CERTIFICATE * 600, KEY, "certificate .*: must be PEM"),
        (CERTIFICATE, "", "key '0 characters': must be one private key"),
        (CERTIFICATE, KEY + KEY, "key .*: must be one private key"),
        (CERTIFICATE, CERTIFICATE, "key .*: must be one private key"),
        (CERTIFICATE, block("OPENSSH PRIVATE KEY"), "key .*: must be one private key"),
        (CERTIFICATE, block("PRIVATE KEY", "A" * MAX_KEY), "key .*: must be one private key"),
        (CERTIFICATE, block("ENCRYPTED PRIVATE KEY"), "key .*: is encrypted"),
        (
            CERTIFICATE,
            block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nQUJD"),
            "key .*: is encrypted",
        ),
    ],
)
def test_another_shape_is_refused_by_the_name_of_the_field(certificate: str, key: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"role_credential.{says}") as refusal:
        LongLivedCredential(certificate, key)
    assert "QUJD" not in f"{refusal.value.brief} {refusal.value.hint} {refusal.value.details}"


@given(st.text(st.characters(codec="ascii"), min_size=6), st.booleans())
def test_no_refusal_quotes_what_it_refuses(text: str, as_key: bool) -> None:
    secret = f"s3cr3t{text}"
    with pytest.raises(Invalid) as refusal:
        if as_key:
            LongLivedCredential(CERTIFICATE, secret)
        else:
            from_pem(secret)
    assert "s3cr3t" not in f"{refusal.value.brief} {refusal.value.hint} {refusal.value.details}"


def test_a_file_may_hold_its_parts_in_any_order_and_more_than_them() -> None:
    noise = "Bag Attributes\n    friendlyName: web\n"
    text = noise + block("EC PARAMETERS") + KEY + noise + CERTIFICATE + block("CERTIFICATE", "WFla")
    found = from_pem(text)
    assert (found.certificate, found.key) == (CERTIFICATE + block("CERTIFICATE", "WFla"), KEY)
    assert len(found.certificate) < MAX_CERTIFICATES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "certificate .*: there is none in it"),
        (KEY, "certificate .*: there is none in it"),
        (CERTIFICATE, "key .*: there is no private key in it"),
        (CERTIFICATE + KEY + KEY, "key .*: there are 2 private keys in it"),
        (CERTIFICATE + block("ENCRYPTED PRIVATE KEY"), "key .*: is encrypted"),
        (CERTIFICATE + block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\n\nQ"), "key .*: is encrypted"),
    ],
)
def test_a_file_without_one_of_each_is_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"role_credential.{says}"):
        from_pem(text)
