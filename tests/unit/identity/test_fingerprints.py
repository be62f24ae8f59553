from __future__ import annotations

import hashlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid, Malformed
from atoll.identity import certificates, fingerprints
from atoll.identity.inspection import describe
from atoll.system import clock


@pytest.fixture(scope="module")
def pem() -> bytes:
    lifetime = certificates.CA_LIFETIME
    ca = certificates.issue_ca("CA", certificates.make_key(), serial=1, now=clock.now(), lifetime=lifetime)
    return certificates.to_pem(ca)


def test_a_fingerprint_is_what_ca_show_and_openssl_say(pem):
    found = fingerprints.of_pem(b"a remark\n" + pem + pem)
    assert found == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).digest()
    assert fingerprints.show(found) == f"SHA256:{describe(pem)[0].sha256}"


@given(st.binary(min_size=32, max_size=32), st.sampled_from([str.upper, str.lower]))
def test_a_fingerprint_is_taken_as_people_write_it(value, case):
    for text in (
        value.hex(),
        value.hex(":"),
        value.hex(" "),
        fingerprints.show(value),
        f"sha256 {value.hex()}",
    ):
        assert fingerprints.parse(f" {case(text)}\n") == value


@given(st.text(max_size=80))
def test_what_is_none_is_refused(text):
    try:
        assert len(fingerprints.parse(text)) == 32
    except Invalid as refusal:
        assert "fingerprint" in refusal.brief


@given(st.binary(max_size=200))
def test_what_is_no_certificate_has_none(data):
    with pytest.raises(Malformed):
        fingerprints.of_pem(data)
    with pytest.raises(Malformed):
        fingerprints.of_pem(b"-----BEGIN CERTIFICATE-----\n" + data)
