from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from atoll.errors import Unauthenticated
from atoll.identity import certificates, extensions
from atoll.identity.certificates import make_key
from atoll.identity.claims import Claims, server_claims, service_claims, user_claims
from atoll.identity.peer import NothingRevoked, PeerReader
from atoll.identity.trust import Ca, read_cas
from atoll.model.identity import Identity

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
CA_KEY = make_key()
CA = certificates.issue_ca("test", CA_KEY, serial=1, now=NOW, lifetime=100 * DAY)
KEY = make_key()


class Revoked(set):
    """Serials that are refused."""

    def refusal(self, issuer: Ca, serial: int, now: datetime) -> str | None:
        return "was revoked" if serial in self else None


def leaf(claims: Claims) -> bytes:
    made = certificates.issue(claims, KEY.public_key(), CA, CA_KEY, serial=77, now=NOW, lifetime=DAY)
    return made.public_bytes(Encoding.DER)


def foreign(*, subject: list[x509.NameAttribute], extensions: list[x509.ExtensionType]) -> bytes:
    """As another issuer with the same CA key would make it."""
    builder = x509.CertificateBuilder(
        issuer_name=CA.subject,
        subject_name=x509.Name(subject),
        public_key=KEY.public_key(),
        serial_number=5,
        not_valid_before=NOW,
        not_valid_after=NOW + DAY,
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(CA_KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def cn(value: str) -> x509.NameAttribute:
    return x509.NameAttribute(NameOID.COMMON_NAME, value)


def reader(revocations=None) -> PeerReader:
    return PeerReader(read_cas(certificates.to_pem(CA)), revocations or NothingRevoked())


def refusal(der: bytes | None, now: datetime = NOW, revocations=None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        reader(revocations).identity(der, now)
    assert caught.value.hint
    return caught.value


def test_a_user_certificate_gives_user_groups_and_methods():
    der = leaf(user_claims("ann", ("ops", "web"), ("vm.*",)))
    assert reader().identity(der, NOW) == Identity("ann", frozenset({"ops", "web"}), frozenset({"vm.*"}))


def test_a_service_certificate_may_call():
    assert reader().identity(leaf(service_claims("node1", ("node1",))), NOW).user == "node1"


def test_a_certificate_that_does_not_limit_its_use_may_call():
    assert reader().identity(foreign(subject=[cn("bob")], extensions=[]), NOW) == Identity("bob")


def test_no_certificate_is_refused():
    assert "none was presented" in refusal(None).brief
    assert "none was presented" in refusal(b"").brief


def test_an_expired_certificate_is_refused_also_once_it_was_good():
    peers = reader()
    der = leaf(user_claims("ann"))
    assert peers.identity(der, NOW + DAY).user == "ann"
    with pytest.raises(Unauthenticated, match="ann expired at 2026-03-02 12:00:00Z"):
        peers.identity(der, NOW + DAY + timedelta(seconds=1))


def test_a_certificate_from_the_future_is_refused():
    assert "not valid before 2026-03-01 11:55:00Z" in refusal(leaf(user_claims("ann")), NOW - DAY).brief


def test_a_revoked_certificate_is_refused_from_the_next_request_on():
    revoked = Revoked()
    peers = PeerReader(read_cas(certificates.to_pem(CA)), revoked)
    der = leaf(user_claims("ann"))
    assert peers.identity(der, NOW).user == "ann"
    revoked.add(77)
    with pytest.raises(Unauthenticated, match="ann was revoked"):
        peers.identity(der, NOW)


def test_a_server_certificate_cannot_call():
    assert "for servers only" in refusal(leaf(server_claims(("node1",)))).brief


def test_the_ca_itself_cannot_call():
    assert "a CA's own" in refusal(CA.public_bytes(Encoding.DER)).brief


def test_a_certificate_of_another_ca_is_refused():
    other = trustme.CA().issue_cert("ann@example.org", common_name="ann")
    der = x509.load_pem_x509_certificate(other.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)
    assert "a CA that is not trusted here" in refusal(der).brief


def test_a_certificate_that_only_claims_our_ca_as_issuer_is_refused():
    impostor = make_key()
    made = certificates.issue(
        user_claims("ann"), KEY.public_key(), CA, impostor, serial=7, now=NOW, lifetime=DAY
    )
    assert "a CA that is not trusted here" in refusal(made.public_bytes(Encoding.DER)).brief


@pytest.mark.parametrize("name", ["../root", "ann smith", "ann\nroot", "-ann", "x" * 129])
def test_a_common_name_that_is_no_user_name_is_refused(name: str):
    with warnings.catch_warnings(action="ignore"):
        attribute = x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False)
    assert "common name" in refusal(foreign(subject=[attribute], extensions=[])).brief


@pytest.mark.parametrize(
    "subject", [[], [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "x")], [cn("a"), cn("b")]]
)
def test_a_subject_without_exactly_one_common_name_is_refused(subject: list[x509.NameAttribute]):
    assert "common name" in refusal(foreign(subject=subject, extensions=[])).brief


@pytest.mark.parametrize("oid", [certificates.GROUPS, certificates.METHODS])
def test_a_malformed_extension_refuses_the_whole_certificate(oid: x509.ObjectIdentifier):
    der = foreign(subject=[cn("ann")], extensions=[x509.UnrecognizedExtension(oid, b"\x30\x05\x13")])
    assert "extension" in refusal(der).brief or "DER" in refusal(der).brief


def test_bytes_that_are_no_certificate_are_refused():
    assert "unusable" in refusal(b"\x30\x03abc").brief


def test_cut_and_damaged_certificates_give_an_identity_or_a_refusal():
    der = leaf(user_claims("ann", ("ops",)))
    peers = reader()
    for at in range(len(der)):
        damaged = der[:at] + bytes([der[at] ^ 0x41]) + der[at + 1 :]
        with pytest.raises(Unauthenticated):
            peers.identity(damaged, NOW)
        with pytest.raises(Unauthenticated):
            peers.identity(der[:at], NOW)


def test_a_caller_who_comes_again_is_not_read_again():
    peers = reader()
    der = leaf(user_claims("ann"))
    assert peers.identity(der, NOW) is peers.identity(bytes(bytearray(der)), NOW)


# --- limits, and other critical extensions


def extension(oid: str, value: bytes, *, critical: bool) -> bytes:
    builder = x509.CertificateBuilder(
        issuer_name=CA.subject,
        subject_name=x509.Name([cn("ann")]),
        public_key=KEY.public_key(),
        serial_number=5,
        not_valid_before=NOW,
        not_valid_after=NOW + DAY,
    )
    found = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)
    made = builder.add_extension(found, critical=critical).sign(CA_KEY, hashes.SHA256())
    return made.public_bytes(Encoding.DER)


def test_a_limit_is_read():
    der = leaf(user_claims("ann", (), ("vm.*",), ("vm.list",)))
    assert reader().identity(der, NOW).limit == frozenset({"vm.list"})
    assert reader().identity(leaf(user_claims("ann")), NOW).limit is None


@pytest.mark.parametrize("critical", [True, False])
def test_a_limit_holds_whether_its_issuer_marked_it_critical_or_not(critical: bool):
    value = extensions.encode_limit(["vm.list"])
    der = extension(extensions.LIMIT_OID, value, critical=critical)
    assert reader().identity(der, NOW).limit == frozenset({"vm.list"})


def test_an_empty_limit_of_another_issuer_is_a_limit():
    der = extension(extensions.LIMIT_OID, b"\x30\x00", critical=True)
    assert reader().identity(der, NOW).limit == frozenset()


def test_a_limit_that_cannot_be_read_refuses_the_certificate():
    assert "unusable" in refusal(extension(extensions.LIMIT_OID, b"\x04\x00", critical=True)).brief


def test_a_critical_extension_that_is_not_understood_refuses_the_certificate():
    assert "1.2.3.4 is critical" in refusal(extension("1.2.3.4", b"\x05\x00", critical=True)).brief
    assert reader().identity(extension("1.2.3.4", b"\x05\x00", critical=False), NOW).user == "ann"
