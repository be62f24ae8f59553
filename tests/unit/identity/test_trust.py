"""The way from a certificate up to a CA that is trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from msgspec import structs

from atoll.errors import Malformed
from atoll.identity.certificates import make_key
from atoll.identity.trust import Ca, as_ca, find_chain, read_cas
from hierarchy import DAY, OrgCa

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOT = OrgCa("Root", now=NOW, days=3650)
USERS = OrgCa("Users", ROOT, now=NOW)
SERVERS = OrgCa("Servers", ROOT, now=NOW)
ANN = USERS.issue("ann")


def ca(*found: OrgCa) -> list[Ca]:
    return [as_ca(each.certificate) for each in found]


def names(leaf, trusted: list[Ca], sent: list[Ca] | None = None) -> list[str] | None:
    chain = find_chain(leaf.certificate, trusted, sent or [])
    return [link.issuer.name for link in chain.links] if chain else None


def test_a_bundle_may_hold_roots_and_intermediate_cas_in_any_order():
    assert names(ANN, ca(USERS, ROOT)) == names(ANN, ca(ROOT, SERVERS, USERS)) == ["Users", "Root"]


def test_every_certificate_of_a_chain_is_known_by_its_issuer_and_number():
    chain = find_chain(ANN.certificate, ca(ROOT, USERS))
    assert [(link.issuer.name, link.serial) for link in chain.links] == [
        ("Users", ANN.serial),
        ("Root", USERS.certificate.serial_number),
    ]


def test_an_intermediate_ca_is_trusted_without_its_root():
    assert names(ANN, ca(USERS)) == ["Users"]
    assert names(ANN, ca(SERVERS)) is None


def test_an_intermediate_ca_that_the_client_sent_is_trusted_by_its_root_alone():
    assert names(ANN, ca(ROOT)) is None
    assert names(ANN, ca(ROOT), ca(USERS)) == ["Users", "Root"]
    assert names(ANN, ca(OrgCa("Root", now=NOW)), ca(USERS)) is None
    assert names(ANN, ca(SERVERS), ca(USERS, ROOT)) is None


def test_a_ca_of_the_same_name_and_another_key_is_another_one():
    twin = OrgCa("Users", ROOT, now=NOW)
    assert as_ca(twin.certificate).issuer_id != as_ca(USERS.certificate).issuer_id
    assert names(ANN, ca(twin)) is None


def test_two_certificates_of_one_ca_are_the_same_issuer_and_the_one_that_holds_longer_counts():
    again = OrgCa("Users", ROOT, key=USERS.key, now=NOW + 100 * DAY)
    assert as_ca(again.certificate).issuer_id == as_ca(USERS.certificate).issuer_id
    leaf = OrgCa("Users", ROOT, key=USERS.key, now=NOW + 300 * DAY).issue("bob", days=100)
    for trusted in (ca(USERS, again), ca(again, USERS)):
        chain = find_chain(leaf.certificate, trusted)
        assert chain.not_after == leaf.certificate.not_valid_after_utc


def test_a_chain_holds_as_long_as_the_first_of_its_certificates_up_to_a_trusted_one():
    brief = OrgCa("Brief", ROOT, now=NOW, days=2)
    leaf = brief.issue("ann", days=30)
    end = NOW + 2 * DAY - timedelta(minutes=5)
    assert find_chain(leaf.certificate, ca(brief)).not_after == end
    assert find_chain(leaf.certificate, ca(ROOT), ca(brief)).not_after == end
    ended = OrgCa("Ended", now=NOW - 20 * DAY, days=10)
    below = OrgCa("Below", ended, now=NOW)
    assert find_chain(below.issue("ann").certificate, ca(ended, below)).not_after > NOW


def test_cas_that_issued_each_other_end():
    one, other = OrgCa("One", now=NOW), OrgCa("Other", now=NOW)
    crossed = [OrgCa("One", other, key=one.key, now=NOW), OrgCa("Other", one, key=other.key, now=NOW)]
    leaf = crossed[0].issue("ann")
    assert names(leaf, ca(one, other), ca(*crossed))[0] == "One"
    assert names(leaf, ca(ROOT), ca(*crossed)) is None


def test_a_bundle_holds_nothing_but_cas():
    pem = ROOT.pem + ANN.certificate.public_bytes(Encoding.PEM)
    with pytest.raises(Malformed, match="'ann' is not a CA's"):
        read_cas(pem)
    with pytest.raises(Malformed):
        read_cas(b"rubbish")
    assert len(read_cas(ROOT.pem + USERS.pem + ROOT.pem)) == 2


def test_a_ca_with_a_critical_extension_that_is_not_understood_is_no_way_up():
    strange = structs.replace(as_ca(USERS.certificate), not_understood="1.2.3.4")
    assert find_chain(ANN.certificate, [strange, *ca(ROOT)]) is None
    assert find_chain(ANN.certificate, [strange, *ca(ROOT, USERS)]) is not None


def test_what_is_critical_in_a_ca_is_read():
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    key = make_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Odd")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = builder.add_extension(odd, critical=True).sign(key, hashes.SHA256())
    assert as_ca(made).not_understood == "1.2.3.4"
    assert as_ca(ROOT.certificate).not_understood == ""
