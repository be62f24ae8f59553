from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from atoll.errors import Conflict, Denied, HostFailure, Invalid, NotFound, Unauthenticated
from atoll.identity import certificates, store, validity
from atoll.identity.authority import Authority
from atoll.identity.certificates import KeyKind
from atoll.identity.claims import Kind, server_claims, user_claims
from atoll.identity.contents import Contents
from atoll.identity.store import Outcome
from atoll.identity.tls import Pair
from atoll.system import steps

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, now: Clock) -> Authority:
    return Authority.create(tmp_path / "ca", "test", now=now)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def serial_of(cert_pem: bytes) -> int:
    return certificates.from_pem(cert_pem).serial_number


def listed(authority: Authority) -> set[int]:
    return {entry.serial_number for entry in x509.load_pem_x509_crl(authority.crl_pem())}


def test_the_signing_key_and_the_index_are_for_their_owner_only(authority: Authority):
    authority.issue_user("ann")
    assert mode(authority.directory) == 0o700
    assert mode(authority.directory / "ca.key") == 0o600
    assert mode(authority.directory / "issued.jsonl") == 0o600
    assert mode(authority.cert_path) == 0o644


def test_an_issued_certificate_is_of_the_ca_and_its_key_fits(authority: Authority):
    issued = authority.issue_user("ann", groups=["ops"], methods=["vm.*"], key_kind=KeyKind.ED25519)
    certificate = certificates.from_pem(issued.cert_pem)
    assert certificates.issued_by(certificate, authority.certificate)
    assert certificates.key_from_pem(issued.key_pem).public_key() == certificate.public_key()
    assert int(issued.serial, 16) == certificate.serial_number
    assert issued.not_after == NOW + DAY == certificate.not_valid_after_utc


def test_the_private_key_is_not_shown_when_the_result_is_printed(authority: Authority):
    assert "PRIVATE" not in repr(authority.issue_user("ann"))


def test_the_index_tells_what_was_issued_in_order(authority: Authority):
    user = authority.issue_user("ann", ["ops"], ["vm.*"])
    server = authority.issue_server(["10.0.0.1", "node1"])
    service = authority.issue_service("agent", ["node1"])
    found = authority.list_issued()
    assert [record.serial for record in found] == [user.serial, server.serial, service.serial]
    assert [record.kind for record in found] == [Kind.USER, Kind.SERVER, Kind.SERVICE]
    assert (found[0].subject, found[0].groups, found[0].methods) == ("ann", ("ops",), ("vm.*",))
    assert found[1].names == ("10.0.0.1", "node1")
    assert found[0].not_after == user.not_after
    assert [record.subject for record in authority.list_issued(subject="agent")] == ["agent"]


def test_a_ca_that_is_opened_again_goes_on(authority: Authority, now: Clock):
    authority.issue_user("ann")
    again = Authority.open(authority.directory, now=now)
    assert again.certificate == authority.certificate
    again.issue_user("bob")
    assert [record.subject for record in authority.list_issued()] == ["ann", "bob"]


def test_a_ca_is_never_overwritten(authority: Authority):
    key = (authority.directory / "ca.key").read_bytes()
    with pytest.raises(Conflict, match="there is one already"):
        Authority.create(authority.directory, "other")
    assert (authority.directory / "ca.key").read_bytes() == key
    assert Authority.ensure(authority.directory, "other").certificate == authority.certificate


def test_a_ca_whose_making_was_cut_short_is_made_again(authority: Authority, now: Clock):
    authority.cert_path.unlink()
    with pytest.raises(NotFound):
        Authority.open(authority.directory, now=now)
    again = Authority.ensure(authority.directory, "test", now=now)
    assert certificates.issued_by(certificates.from_pem(again.issue_user("ann").cert_pem), again.certificate)
    assert listed(again) == set()


def test_bad_names_leave_no_trace(tmp_path: Path, authority: Authority):
    with pytest.raises(Invalid):
        Authority.create(tmp_path / "new", "a/b")
    assert not (tmp_path / "new").exists()
    with pytest.raises(Invalid):
        authority.issue_user("../ann")
    assert authority.list_issued() == ()


def test_a_damaged_index_is_reported_and_not_guessed_at(authority: Authority):
    authority.issue_user("ann")
    path = authority.directory / "issued.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"issued","serial":"1"\n')
    with pytest.raises(HostFailure, match="line 2 is not a record"):
        authority.list_issued()


def test_revoking_puts_the_serial_on_the_list_and_marks_the_index(authority: Authority, now: Clock):
    ann, bob = authority.issue_user("ann"), authority.issue_user("bob")
    now.time = NOW + timedelta(hours=1)
    record = authority.revoke(ann.serial)
    assert record.revoked_at == now.time
    assert listed(authority) == {int(ann.serial, 16)}
    assert authority.is_revoked(int(ann.serial, 16))
    assert not authority.is_revoked(int(bob.serial, 16))


def test_revoking_again_keeps_the_first_time(authority: Authority, now: Clock):
    ann = authority.issue_user("ann")
    first = authority.revoke(int(ann.serial, 16))
    now.time = NOW + timedelta(hours=1)
    assert authority.revoke(ann.serial.upper()) == first
    assert len(listed(authority)) == 1


def test_a_user_is_cut_off_by_name(authority: Authority, now: Clock):
    old = authority.issue_user("ann")
    now.time = NOW + 2 * DAY
    laptop, desktop, other = (authority.issue_user(user) for user in ("ann", "ann", "bob"))
    cut_off = authority.revoke_subject("ann")
    assert [record.serial for record in cut_off] == [laptop.serial, desktop.serial]
    assert all(record.revoked_at == now.time for record in cut_off)
    assert listed(authority) == {int(laptop.serial, 16), int(desktop.serial, 16)}
    assert int(old.serial, 16) not in listed(authority)
    assert not authority.is_revoked(int(other.serial, 16))


def test_revoking_what_was_never_issued_says_so(authority: Authority):
    for attempt in (lambda: authority.revoke("abcd"), lambda: authority.revoke_subject("eve")):
        with pytest.raises(NotFound) as caught:
            attempt()
        assert "atoll ca list" in caught.value.hint


def test_a_certificate_is_revoked_by_itself_even_when_the_index_is_lost(authority: Authority):
    ann = authority.issue_user("ann")
    (authority.directory / "issued.jsonl").unlink()
    assert authority.revoke_certificate(ann.cert_pem) == ann.serial
    assert listed(authority) == {int(ann.serial, 16)}


def test_a_certificate_of_another_ca_is_neither_revoked_nor_renewed(
    authority: Authority, tmp_path: Path, now: Clock
):
    other = Authority.create(tmp_path / "other", "test", now=now).issue_user("ann")
    with pytest.raises(Denied, match="not one of the CA"):
        authority.revoke_certificate(other.cert_pem)
    with pytest.raises(Denied, match="not one of the CA"):
        authority.renew(other.cert_pem)


def test_the_list_forgets_what_has_expired_anyway(authority: Authority, now: Clock):
    authority.revoke(authority.issue_user("ann").serial)
    now.time = NOW + 2 * DAY
    bob = authority.issue_user("bob")
    authority.revoke(bob.serial)
    assert listed(authority) == {int(bob.serial, 16)}


def test_a_revocation_that_was_cut_short_is_published_on_the_next_open(authority: Authority, now: Clock):
    before = authority.crl_pem()
    ann = authority.issue_user("ann")
    authority.revoke(ann.serial)
    authority.crl_path.write_bytes(before)
    assert listed(Authority.open(authority.directory, now=now)) == {int(ann.serial, 16)}


def test_a_revocation_that_was_cut_short_is_published_when_it_is_repeated(authority: Authority):
    before = authority.crl_pem()
    ann = authority.issue_user("ann")
    authority.revoke(ann.serial)
    authority.crl_path.write_bytes(before)
    authority.revoke(ann.serial)
    assert listed(authority) == {int(ann.serial, 16)}


@pytest.mark.parametrize("content", [None, b"", b"rubbish"])
def test_a_lost_list_is_made_again_from_the_index(authority: Authority, now: Clock, content: bytes | None):
    ann = authority.issue_user("ann")
    authority.revoke(ann.serial)
    authority.crl_path.unlink() if content is None else authority.crl_path.write_bytes(content)
    assert listed(Authority.open(authority.directory, now=now)) == {int(ann.serial, 16)}


def test_a_renewed_certificate_states_the_same_for_the_same_key_and_as_long(authority: Authority, now: Clock):
    old = authority.issue_service("agent", ["node1", "10.0.0.1"], ["ops"], ["vm.*"], lifetime=10 * DAY)
    now.time = NOW + 6 * DAY
    new = authority.renew(old.cert_pem)
    before, after = certificates.from_pem(old.cert_pem), certificates.from_pem(new.cert_pem)
    assert Contents(after).claims() == Contents(before).claims()
    assert after.public_key() == before.public_key()
    assert new.not_after == now.time + 10 * DAY
    assert new.serial != old.serial
    assert len(authority.list_issued()) == 2


def test_a_revoked_certificate_is_not_renewed(authority: Authority):
    ann = authority.issue_user("ann")
    authority.revoke(ann.serial)
    with pytest.raises(Denied, match="it was revoked"):
        authority.renew(ann.cert_pem)


@pytest.fixture
def credential(tmp_path: Path) -> store.Credential:
    return store.client_credential(tmp_path / "client")


CLAIMS = user_claims("admin", ("ops",), ("*",))


def ensure(credential: store.Credential, authority: Authority, now: Clock, claims=CLAIMS) -> Outcome:
    return store.ensure(credential, authority, claims, certificates.ADMIN_LIFETIME, now())


def test_a_credential_is_issued_once_and_then_kept(
    authority: Authority, credential: store.Credential, now: Clock
):
    assert ensure(credential, authority, now) is Outcome.ISSUED
    assert ensure(credential, authority, now) is Outcome.KEPT
    assert mode(credential.key) == 0o600
    assert mode(credential.key.parent) == 0o700
    assert credential.ca.read_bytes() == authority.cert_pem
    assert validity.of_pem(credential.cert.read_bytes()).not_after == NOW + 7 * DAY


def test_a_credential_is_renewed_past_half_of_its_life_with_the_same_key(
    authority: Authority, credential: store.Credential, now: Clock
):
    ensure(credential, authority, now)
    key = credential.key.read_bytes()
    now.time = NOW + 3 * DAY
    assert store.renew_if_past_half_life(credential, lambda: authority, now()) is Outcome.KEPT
    now.time = NOW + 4 * DAY
    assert store.renew_if_past_half_life(credential, lambda: authority, now()) is Outcome.RENEWED
    assert credential.key.read_bytes() == key
    assert validity.of_pem(credential.cert.read_bytes()).not_after == NOW + 11 * DAY


@pytest.mark.parametrize(
    "spoil", ["expire", "revoke", "other key", "no key", "rubbish", "other ca", "other claims"]
)
def test_a_credential_that_no_longer_serves_is_issued_anew(
    authority: Authority, credential: store.Credential, now: Clock, tmp_path: Path, spoil: str
):
    ensure(credential, authority, now)
    claims = CLAIMS
    match spoil:
        case "expire":
            now.time = NOW + 8 * DAY
        case "revoke":
            authority.revoke_subject("admin")
        case "other key":
            credential.key.write_bytes(certificates.key_to_pem(certificates.make_key()))
        case "no key":
            credential.key.unlink()
        case "rubbish":
            credential.cert.write_bytes(b"rubbish")
        case "other ca":
            authority = Authority.create(tmp_path / "new", "test", now=now)
        case "other claims":
            claims = user_claims("admin", ("ops", "web"), ("*",))
    assert ensure(credential, authority, now, claims) is Outcome.ISSUED
    assert ensure(credential, authority, now, claims) is Outcome.KEPT
    assert credential.ca.read_bytes() == authority.cert_pem


def test_a_command_goes_on_with_a_certificate_that_still_holds_when_the_ca_is_out_of_reach(
    authority: Authority, credential: store.Credential, now: Clock, tmp_path: Path
):
    ensure(credential, authority, now)

    def nowhere() -> Authority:
        return Authority.open(tmp_path / "nowhere")

    assert store.renew_if_past_half_life(credential, nowhere, NOW + 6 * DAY) is Outcome.KEPT
    with pytest.raises(
        Unauthenticated, match=r"expired at 2026-03-08 12:00Z and could not be renewed: opening"
    ):
        store.renew_if_past_half_life(credential, nowhere, NOW + 8 * DAY)
    credential.cert.unlink()
    with pytest.raises(Unauthenticated, match="reading the certificate"):
        store.renew_if_past_half_life(credential, nowhere, NOW)


def test_a_server_credential_follows_its_names(authority: Authority, tmp_path: Path, now: Clock):
    files = store.server_credential(tmp_path / "server")
    lifetime = certificates.SERVER_LIFETIME
    for names, outcome in [
        (("10.0.0.1",), Outcome.ISSUED),
        (("10.0.0.1",), Outcome.KEPT),
        (("10.0.0.2",), Outcome.ISSUED),
    ]:
        assert store.ensure(files, authority, server_claims(names), lifetime, now()) is outcome
    assert Contents(certificates.from_pem(files.cert.read_bytes())).names == ("10.0.0.2",)


@pytest.mark.parametrize(
    ("spoil", "stays"),
    [("expire", True), ("other claims", True), ("rubbish", True), ("other key", True), ("revoke", False)],
)
def test_a_key_stays_unless_its_certificate_was_revoked(
    authority: Authority, credential: store.Credential, now: Clock, spoil: str, stays: bool
):
    ensure(credential, authority, now)
    match spoil:
        case "expire":
            now.time = NOW + 8 * DAY
        case "revoke":
            authority.revoke_subject("admin")
        case "rubbish":
            credential.cert.write_bytes(b"rubbish")
        case "other key":
            credential.key.write_bytes(certificates.key_to_pem(certificates.make_key()))
    key = credential.key.read_bytes()
    claims = user_claims("admin", ("web",)) if spoil == "other claims" else CLAIMS
    assert ensure(credential, authority, now, claims) is Outcome.ISSUED
    assert (credential.key.read_bytes() == key) is stays
    pair(credential).check()


@pytest.mark.parametrize("change", ["half of its life", "expire", "other claims"])
@pytest.mark.parametrize("step", ["write.begin", "write.written"])
def test_a_pair_that_belongs_together_does_so_wherever_its_renewal_breaks_off(
    authority: Authority, credential: store.Credential, now: Clock, change: str, step: str
):
    ensure(credential, authority, now)
    before = credential.cert.read_bytes()
    now.time = NOW + {"half of its life": 4 * DAY, "expire": 8 * DAY}.get(change, timedelta(0))
    claims = user_claims("admin", ("web",)) if change == "other claims" else CLAIMS
    steps.arm(f"{step}:1:ENOSPC")
    try:
        with pytest.raises(HostFailure):
            ensure(credential, authority, now, claims)
    finally:
        steps.arm("")
    assert credential.cert.read_bytes() == before
    pair(credential).check()
    assert ensure(credential, authority, now, claims) is not Outcome.KEPT
    pair(credential).check()


def pair(credential: store.Credential) -> Pair:
    return Pair(credential.cert.read_bytes(), credential.key.read_bytes())
