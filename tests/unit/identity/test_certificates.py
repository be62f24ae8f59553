from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import Conflict, Invalid, Malformed
from atoll.identity import certificates, validity
from atoll.identity.certificates import KeyKind, make_key
from atoll.identity.claims import Claims, Kind, server_claims, service_claims, user_claims
from atoll.identity.contents import Contents
from atoll.identity.inspection import describe

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
CA_KEY = make_key()
CA = certificates.issue_ca("test", CA_KEY, serial=1, now=NOW, lifetime=certificates.CA_LIFETIME)

principals = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,30}[A-Za-z0-9_]", fullmatch=True)


def leaf(claims: Claims, *, lifetime: timedelta = DAY, key_kind: KeyKind = KeyKind.P256) -> x509.Certificate:
    key = make_key(key_kind)
    return certificates.issue(claims, key.public_key(), CA, CA_KEY, serial=77, now=NOW, lifetime=lifetime)


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension:
    return certificate.extensions.get_extension_for_class(kind)


def test_a_ca_signs_leaves_only():
    constraints, usage = extension(CA, x509.BasicConstraints), extension(CA, x509.KeyUsage)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature


@pytest.mark.parametrize(
    ("claims", "usages"),
    [
        (user_claims("ann"), {ExtendedKeyUsageOID.CLIENT_AUTH}),
        (server_claims(("10.0.0.1",)), {ExtendedKeyUsageOID.SERVER_AUTH}),
        (service_claims("node1"), {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}),
    ],
)
def test_each_kind_is_good_for_its_own_use_only(claims: Claims, usages: set[x509.ObjectIdentifier]):
    certificate = leaf(claims)
    assert Contents(certificate).usages == usages
    assert Contents(certificate).kind is claims.kind
    assert extension(certificate, x509.BasicConstraints).value.ca is False
    assert extension(certificate, x509.KeyUsage).value.digital_signature
    assert not extension(certificate, x509.KeyUsage).value.key_cert_sign


def test_a_leaf_points_to_the_key_of_its_ca():
    certificate = leaf(user_claims("ann"))
    named = extension(certificate, x509.AuthorityKeyIdentifier).value.key_identifier
    assert named == extension(CA, x509.SubjectKeyIdentifier).value.digest
    assert certificates.issued_by(certificate, CA)


def test_a_fresh_certificate_is_backdated_for_clocks_that_differ():
    certificate = leaf(user_claims("ann"), lifetime=DAY)
    assert certificate.not_valid_before_utc == NOW.replace(microsecond=0) - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW.replace(microsecond=0) + DAY


def test_a_leaf_never_outlives_its_ca():
    short = certificates.issue_ca("short", CA_KEY, serial=2, now=NOW, lifetime=DAY)
    certificate = certificates.issue(
        user_claims("ann"), CA_KEY.public_key(), short, CA_KEY, serial=3, now=NOW, lifetime=30 * DAY
    )
    assert certificate.not_valid_after_utc == short.not_valid_after_utc
    with pytest.raises(Conflict, match="the CA expired at 2026-03-02"):
        certificates.issue(
            user_claims("ann"), CA_KEY.public_key(), short, CA_KEY, serial=3, now=NOW + 2 * DAY, lifetime=DAY
        )


@pytest.mark.parametrize("lifetime", [timedelta(0), -DAY, 398 * DAY])
def test_a_lifetime_must_be_positive_and_at_most_thirteen_months(lifetime: timedelta):
    with pytest.raises(Invalid, match="lifetime"):
        leaf(user_claims("ann"), lifetime=lifetime)


@settings(max_examples=40, deadline=None)
@given(principals, st.frozensets(principals, max_size=20), st.frozensets(st.just("vm.*") | st.just("*")))
def test_user_groups_and_methods_are_read_back(user: str, groups: frozenset[str], methods: frozenset[str]):
    claims = user_claims(user, tuple(groups), tuple(methods))
    contents = Contents(certificates.from_pem(certificates.to_pem(leaf(claims))))
    assert contents.claims() == claims
    assert (contents.subject, contents.groups, contents.methods) == (user, groups, methods)


def test_addresses_and_names_are_told_apart_and_tidied():
    names = ("10.0.0.1", "Node1.Example.", "node1.example", "2001:DB8::0:1", "localhost")
    certificate = leaf(server_claims(names))
    alternative = extension(certificate, x509.SubjectAlternativeName).value
    assert [str(ip) for ip in alternative.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "2001:db8::1"]
    assert alternative.get_values_for_type(x509.DNSName) == ["node1.example", "localhost"]
    assert Contents(certificate).names == ("10.0.0.1", "node1.example", "2001:db8::1", "localhost")


def test_a_server_whose_names_are_all_too_long_for_a_subject_still_gets_a_certificate():
    name = ".".join(["a" * 60] * 3)
    assert Contents(leaf(server_claims((name,)))).subject == "server"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: user_claims("a" * 65), "subject"),
        (lambda: user_claims("ann\n"), "user"),
        (lambda: user_claims("../ann"), "user"),
        (lambda: user_claims(""), "user"),
        (lambda: user_claims("ann", ("a b",)), "group"),
        (lambda: user_claims("ann", (), ("create",)), "method"),
        (lambda: user_claims("ann", (), ("vm.*\n",)), "method"),
        (lambda: server_claims(()), "names"),
        (lambda: server_claims(("*.example",)), "name"),
        (lambda: server_claims(("a" * 64,)), "name"),
        (lambda: server_claims((".".join(["a" * 60] * 5),)), "name"),
        (lambda: server_claims(("10.0.0.1/24",)), "name"),
        (lambda: server_claims(tuple(f"n{number}" for number in range(65))), "names"),
        (lambda: Claims(Kind.SERVER, "n1", ("n1",), groups=("ops",)), "kind"),
        (lambda: Claims(Kind.USER, "ann", ("n1",)), "names"),
        (lambda: Claims(Kind.CA, "ann"), "kind"),
        (lambda: certificates.issue_ca("x" * 65, CA_KEY, serial=1, now=NOW, lifetime=DAY), "CA name"),
    ],
)
def test_claims_that_make_no_sense_are_refused_by_field(make, field: str):
    with pytest.raises(Invalid) as caught:
        make()
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("kind", list(KeyKind))
def test_keys_survive_the_round_trip(kind: KeyKind):
    key = make_key(kind)
    again = certificates.key_from_pem(certificates.key_to_pem(key))
    assert again.public_key() == key.public_key()
    certificate = leaf(user_claims("ann"), key_kind=kind)
    assert (
        describe(certificates.to_pem(certificate))[0].key == {"p256": "secp256r1", "ed25519": "ed25519"}[kind]
    )


def test_the_default_key_is_p256():
    key = make_key()
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"


def test_an_ed25519_ca_signs_too():
    key = make_key(KeyKind.ED25519)
    ca = certificates.issue_ca("ed", key, serial=1, now=NOW, lifetime=DAY)
    certificate = certificates.issue(
        user_claims("ann"), CA_KEY.public_key(), ca, key, serial=2, now=NOW, lifetime=DAY
    )
    assert certificates.issued_by(certificate, ca)
    assert not certificates.issued_by(certificate, CA)


def test_a_description_tells_everything_that_a_certificate_says():
    pem = certificates.to_pem(
        leaf(service_claims("web", ("10.0.0.9",), ("ops",), ("vm.*",)))
    ) + certificates.to_pem(CA)
    service, ca = describe(pem)
    assert (service.kind, service.subject, service.issuer, service.serial) == (
        Kind.SERVICE,
        "web",
        "test",
        "4d",
    )
    assert (service.names, service.groups, service.methods) == (("10.0.0.9",), ("ops",), ("vm.*",))
    assert len(service.sha256.split(":")) == 32
    assert service.state(NOW) == "valid"
    assert service.state(NOW + 2 * DAY) == "expired"
    assert service.state(NOW - DAY) == "not yet valid"
    assert (ca.kind, ca.subject, ca.names) == (Kind.CA, "test", ())


@pytest.mark.parametrize(
    "pem", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_not_a_certificate_is_refused(pem: bytes):
    with pytest.raises(Malformed):
        describe(pem)
    with pytest.raises(Malformed):
        validity.of_pem(pem)


@pytest.mark.parametrize("lifetime", [certificates.ADMIN_LIFETIME, 300 * DAY])
def test_the_fast_reader_of_dates_agrees_with_the_library(lifetime: timedelta):
    certificate = leaf(user_claims("ann"), lifetime=lifetime)
    expected = validity.Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    assert validity.of_pem(certificates.to_pem(certificate)) == expected


def test_the_fast_reader_of_dates_knows_years_from_2050_on():
    ca = certificates.issue_ca("far", CA_KEY, serial=1, now=NOW, lifetime=timedelta(days=365 * 40))
    assert validity.of_pem(certificates.to_pem(ca)).not_after == ca.not_valid_after_utc


@given(st.data())
def test_the_fast_reader_of_dates_gives_dates_or_our_error_for_damaged_certificates(data: st.DataObject):
    der = bytearray(CA.public_bytes(Encoding.DER))
    for at in data.draw(st.lists(st.integers(0, 160), min_size=1, max_size=5)):
        der[at] = data.draw(st.integers(0, 255))
    try:
        found = validity.of_der(bytes(der))
    except Malformed:
        return
    assert found.not_before.tzinfo is UTC


def test_half_of_a_life_is_when_as_much_lies_ahead_as_behind():
    held = validity.Validity(NOW, NOW + 2 * DAY)
    assert not held.past_half(NOW + DAY)
    assert held.past_half(NOW + DAY + timedelta(seconds=1))
    assert not held.over(NOW + 2 * DAY)
    assert held.over(NOW + 3 * DAY)
