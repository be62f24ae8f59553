from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from atoll.api.joining import MAX_REQUEST
from atoll.errors import Denied, Invalid
from atoll.identity import requests
from atoll.identity.certificates import KeyKind, make_key

KEY = make_key()
REQUEST = requests.make(KEY, "alice")


@pytest.mark.parametrize("kind", list(KeyKind))
def test_a_request_brings_the_key_of_whoever_made_it(kind):
    key = make_key(kind)
    assert requests.public_key(requests.make(key, "alice")) == key.public_key()


def test_a_request_for_a_key_that_its_sender_does_not_have_is_refused():
    der = x509.load_pem_x509_csr(REQUEST).public_bytes(Encoding.DER)
    forged = x509.load_der_x509_csr(der[:-1] + bytes([der[-1] ^ 1])).public_bytes(Encoding.PEM)
    with pytest.raises(Denied, match="not signed by the key"):
        requests.public_key(forged)


@pytest.mark.parametrize(
    "key", [rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP192R1())]
)
def test_a_weak_key_is_refused(key):
    pem = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    with pytest.raises(Denied, match="too weak"):
        requests.public_key(pem.public_bytes(Encoding.PEM))


@given(st.data())
def test_whatever_is_sent_is_a_request_or_refused(data):
    place = data.draw(st.integers(0, len(REQUEST) - 1))
    broken = bytearray(REQUEST)
    broken[place] ^= data.draw(st.integers(1, 255))
    for pem in (bytes(broken), REQUEST[:place], data.draw(st.binary(max_size=100))):
        try:
            assert requests.public_key(pem) == KEY.public_key()
        except (Invalid, Denied) as refusal:
            assert "certificate request" in refusal.brief


def test_a_request_that_is_too_long_is_not_read():
    with pytest.raises(Invalid, match="longer"):
        requests.public_key(REQUEST + b"\n" * MAX_REQUEST)
