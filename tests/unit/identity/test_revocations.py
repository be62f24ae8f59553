"""Which certificates are refused before they end: by issuer and number, by lists that come and go."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import HostFailure
from atoll.identity.authority import Authority
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.trust import as_ca, read_cas
from hierarchy import DAY, OrgCa

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOT = OrgCa("Root", now=NOW, days=3650)
USERS = OrgCa("Users", ROOT, now=NOW)
OTHERS = OrgCa("Others", ROOT, now=NOW)
CAS = [as_ca(each.certificate) for each in (ROOT, USERS, OTHERS)]
ROOT_CA, USERS_CA, OTHERS_CA = CAS


def lists(directory: Path, *contents: bytes) -> list[Path]:
    paths = [directory / f"{number}.crl" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.parametrize("together", [True, False])
def test_a_list_of_one_issuer_never_revokes_a_number_of_another(tmp_path: Path, together: bool):
    contents = [ROOT.crl(), USERS.crl(7), OTHERS.crl(8)]
    paths = lists(tmp_path, b"\n".join(contents)) if together else lists(tmp_path, *contents)
    revocations = Revocations(paths, CAS)

    def revoked(ca, serial):
        return revocations.refusal(ca, serial, NOW)

    assert (revoked(USERS_CA, 7), revoked(OTHERS_CA, 7), revoked(ROOT_CA, 7)) == ("was revoked", None, None)
    assert (revoked(USERS_CA, 8), revoked(OTHERS_CA, 8)) == (None, "was revoked")


@given(
    some.sets(some.integers(1, 1 << 159), max_size=20),
    some.sets(some.integers(1, 1 << 159), max_size=20),
    some.integers(1, 1 << 159),
)
def test_what_is_revoked_is_what_the_list_of_its_issuer_says(
    tmp_path_factory: pytest.TempPathFactory, of_users: set[int], of_others: set[int], another: int
):
    paths = lists(tmp_path_factory.mktemp("crl"), ROOT.crl(), USERS.crl(*of_users), OTHERS.crl(*of_others))
    revocations = Revocations(paths, CAS)
    for serial in {*of_users, *of_others, another}:
        for ca, listed in ((USERS_CA, of_users), (OTHERS_CA, of_others)):
            assert (revocations.refusal(ca, serial, NOW) is not None) is (serial in listed)


def test_a_list_in_der_is_taken(tmp_path: Path):
    paths = lists(tmp_path, USERS.crl(7, encoding=Encoding.DER))
    assert Revocations(paths, [USERS_CA]).refusal(USERS_CA, 7, NOW) == "was revoked"


def test_a_ca_without_a_list_is_an_error_unless_it_is_named(tmp_path: Path):
    paths = lists(tmp_path, ROOT.crl(), OTHERS.crl())
    with pytest.raises(HostFailure, match="no revocation list of CA Users$") as caught:
        Revocations(paths, CAS)
    assert "pki.without_crl" in caught.value.hint
    revocations = Revocations(paths, CAS, ["Users"])
    assert revocations.refusal(USERS_CA, 7, NOW) is None
    unknown = as_ca(OrgCa("Sent", ROOT, now=NOW).certificate)
    assert "no revocation list of its CA Sent here" in revocations.refusal(unknown, 7, NOW)


def test_a_list_counts_also_where_none_is_needed(tmp_path: Path):
    revocations = Revocations(lists(tmp_path, USERS.crl(7)), [USERS_CA], ["Users"])
    assert revocations.refusal(USERS_CA, 7, NOW) == "was revoked"


def test_a_list_whose_time_is_over_lets_nobody_in_until_there_is_a_newer_one(tmp_path: Path):
    (path,) = lists(tmp_path, USERS.crl(7, days=7))
    revocations = Revocations([path], [USERS_CA])
    late = NOW + 8 * DAY
    assert revocations.refusal(USERS_CA, 8, NOW) is None
    assert "list of its CA Users ended at 2026-03-08 11:55:00Z" in revocations.refusal(USERS_CA, 8, late)
    assert revocations.refusal(USERS_CA, 7, late) == "was revoked"
    path.write_bytes(USERS.crl(7, days=30, number=2))
    revocations.look_again()
    assert revocations.refusal(USERS_CA, 8, late) is None


@pytest.mark.parametrize(
    "extension",
    [
        x509.DeltaCRLIndicator(1),
        x509.IssuingDistributionPoint(None, None, True, False, None, False, False),
    ],
)
def test_a_list_that_is_not_whole_is_not_taken_for_a_whole_one(tmp_path: Path, extension: x509.ExtensionType):
    with pytest.raises(HostFailure, match="not a complete one"):
        Revocations(lists(tmp_path, USERS.crl(more=[(extension, True)])), [USERS_CA])


def test_a_list_of_a_ca_that_is_not_trusted_is_an_error(tmp_path: Path):
    twin = OrgCa("Users", ROOT, now=NOW)
    with pytest.raises(HostFailure, match="CN=Users' is not signed by a CA that is trusted"):
        Revocations(lists(tmp_path, twin.crl()), [USERS_CA])


@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN X509 CRL-----\n", ROOT.pem])
def test_what_is_no_list_is_an_error(tmp_path: Path, content: bytes):
    with pytest.raises(HostFailure, match="not a PEM or DER revocation list"):
        Revocations(lists(tmp_path, content), [ROOT_CA])


def test_a_list_that_is_missing_is_an_error(tmp_path: Path):
    with pytest.raises(HostFailure, match="No such file") as caught:
        Revocations([tmp_path / "none"], [ROOT_CA])
    assert "revoked certificates would be accepted" in caught.value.hint


def test_the_last_good_list_stays_when_the_file_is_damaged_replaced_older_or_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (path,) = lists(tmp_path, USERS.crl(7, number=5))
    revocations = Revocations([path], [USERS_CA])
    for content in (b"rubbish", OTHERS.crl(), USERS.crl(number=4), None):
        path.unlink() if content is None else path.write_bytes(content)
        caplog.clear()
        for _ in range(3):
            revocations.look_again()
            assert revocations.refusal(USERS_CA, 7, NOW) == "was revoked"
        assert [record.levelno for record in caplog.records] == [logging.WARNING]  # said once
    path.write_bytes(USERS.crl(7, 8, number=6))
    revocations.look_again()
    assert revocations.refusal(USERS_CA, 8, NOW) == "was revoked"


def test_lists_without_a_number_are_told_apart_by_their_time(tmp_path: Path):
    (path,) = lists(tmp_path, USERS.crl(7, number=None))
    revocations = Revocations([path], [USERS_CA])
    older = OrgCa("Users", ROOT, key=USERS.key, now=NOW - DAY).crl(number=None)
    newer = OrgCa("Users", ROOT, key=USERS.key, now=NOW + DAY).crl(number=None)
    for content, expected in ((older, "was revoked"), (newer, None)):
        path.write_bytes(content)
        revocations.look_again()
        assert revocations.refusal(USERS_CA, 7, NOW + DAY) == expected


def test_a_revoked_intermediate_ca_takes_all_that_it_issued_with_it(tmp_path: Path):
    (path, *_) = paths = lists(tmp_path, ROOT.crl(), USERS.crl(), OTHERS.crl())
    revocations = Revocations(paths, CAS)
    peers = PeerReader(CAS, revocations)
    ann, bob = USERS.issue("ann"), OTHERS.issue("bob")
    assert peers.identity(ann.der, NOW).user == "ann"
    path.write_bytes(ROOT.crl(USERS.certificate.serial_number, number=2))
    revocations.look_again()
    with pytest.raises(Exception, match="the certificate of CA Users, which issued that of ann, was revoked"):
        peers.identity(ann.der, NOW)
    assert peers.identity(bob.der, NOW).user == "bob"


def test_the_small_ca_is_heard_when_it_revokes(tmp_path: Path):
    authority = Authority.create(tmp_path / "ca", "test")
    (ca,) = read_cas(authority.cert_pem)
    revocations, now = Revocations([authority.crl_path], [ca]), datetime.now(UTC)
    ann = authority.issue_user("ann")
    serial = int(ann.serial, 16)
    authority.revoke(ann.serial)
    assert revocations.refusal(ca, serial, now) is None
    revocations.look_again()
    assert revocations.refusal(ca, serial, now) == "was revoked"
    assert revocations.refusal(ca, serial, now + 3000 * DAY) == "was revoked"
    assert revocations.refusal(ca, serial + 1, now + 3000 * DAY) is None
