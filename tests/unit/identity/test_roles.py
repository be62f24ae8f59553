"""Roles: who gives them, and what a signer makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity
from msgspec import structs

from atoll.errors import Denied, HostFailure, Invalid, Malformed
from atoll.identity import certificates
from atoll.identity.access import Operators
from atoll.identity.authority import Authority
from atoll.identity.contents import Contents
from atoll.identity.issuers import issue
from atoll.identity.peer import NothingRevoked, PeerReader
from atoll.identity.roles import (
    Algorithm,
    Certificates,
    KeyPair,
    PublicKeys,
    RoleCallers,
    check_creator,
    check_role_given,
    make_keys,
)
from atoll.identity.signer import Answer, Request, sign
from atoll.identity.trust import read_cas
from atoll.model.identity import Identity

OPERATORS = Operators(users=("root",), groups=("ops",))


@pytest.fixture(scope="module")
def keys() -> dict[Algorithm, KeyPair]:
    return make_keys()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "Test CA")


def request(keys: dict[Algorithm, KeyPair], role: str = "web", hours: float = 1) -> Request:
    public = {algorithm: pair.public for algorithm, pair in keys.items()}
    return Request(role, "10.1.0.5 i-1", public, int(hours * 3600))


@pytest.mark.parametrize(
    ("identity", "may"),
    [
        (Identity("root"), True),
        (Identity("ann", frozenset({"ops"})), True),
        (Identity("ann", frozenset({"web"})), True),
        (Identity("ann", frozenset({"db"})), False),
        (Identity("web"), False),
        (Identity("web@role"), False),
        (Identity("ann", methods=frozenset({"*"})), False),
    ],
)
def test_a_role_is_given_by_operators_and_by_members_of_its_group(identity: Identity, may: bool) -> None:
    if may:
        check_role_given(identity, "web", OPERATORS)
    else:
        with pytest.raises(Denied, match="may not give a VM the role web"):
            check_role_given(identity, "web", OPERATORS)


@pytest.mark.parametrize(
    ("user", "role"),
    [("web@role", "web"), ("web", None), ("svc-web", "svc-web"), ("svc", None), ("ann@role.org", None)],
)
def test_a_caller_is_a_role_by_its_ending_or_by_the_names_that_a_node_was_told(
    user: str, role: str | None
) -> None:
    assert RoleCallers(users=("svc-*",)).role_of(user) == role


@pytest.mark.parametrize(
    ("user", "may_create", "may"),
    [
        ("ann", (), True),
        ("web@role", (), False),
        ("web@role", ("ci",), False),
        ("ci@role", ("ci",), True),
        ("ci-7@role", ("ci-*",), True),
        ("svc-web", (), False),
        ("svc-web", ("svc-*",), True),
    ],
)
def test_a_vm_in_a_role_creates_others_only_where_the_role_is_named(
    user: str, may_create: tuple[str, ...], may: bool
) -> None:
    # Neither groups nor methods nor being an operator make up for it.
    identity = Identity(user, frozenset({"ops"}), frozenset({"*"}))
    callers = RoleCallers(users=("svc-*",), may_create=may_create)
    if may:
        check_creator(identity, callers)
        return
    with pytest.raises(Denied, match=f"{user} may not create a VM here: it is the role of a VM") as caught:
        check_creator(identity, callers)
    assert "role_callers.may_create" in caught.value.hint


def test_a_role_is_a_user_that_no_person_can_be(authority: Authority, keys: dict[Algorithm, KeyPair]) -> None:
    answer = sign(authority, request(keys, role="admin"))

    for made in answer.certificates.values():
        certificate = certificates.from_pem(made.x509.encode())
        assert certificates.issued_by(certificate, authority.certificate)
        contents = Contents(certificate)
        assert (contents.subject, contents.groups, contents.methods) == (
            "admin@role",
            frozenset(),
            frozenset(),
        )
        peers = PeerReader(read_cas(authority.cert_pem), NothingRevoked())
        der = certificate.public_bytes(certificates.Encoding.DER)
        assert peers.identity(der, datetime.now(UTC)) == Identity("admin@role")


def test_every_certificate_of_a_role_can_be_revoked_by_its_name(
    authority: Authority, keys: dict[Algorithm, KeyPair]
) -> None:
    sign(authority, request(keys))

    assert len(authority.revoke_subject("web@role")) == len(keys)


def test_ssh_certificates_name_the_role_and_the_vm(
    authority: Authority, keys: dict[Algorithm, KeyPair]
) -> None:
    answer = sign(authority, request(keys))

    for made in answer.certificates.values():
        ssh = load_ssh_public_identity(made.ssh.encode())
        assert isinstance(ssh, SSHCertificate)
        ssh.verify_cert_signature()
        assert (ssh.valid_principals, ssh.key_id) == ([b"web"], b"web@role 10.1.0.5 i-1")
        assert timedelta(seconds=ssh.valid_before - ssh.valid_after) == timedelta(hours=1, minutes=5)
    assert sign(authority, request(keys)).ssh_ca == answer.ssh_ca


def test_the_keys_of_the_ca_are_for_nobody_else_to_read(
    authority: Authority, keys: dict[Algorithm, KeyPair]
) -> None:
    sign(authority, request(keys))

    assert {path.name for path in authority.directory.glob("*.key")} == {"ca.key", "ssh.key"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in authority.directory.glob("*.key"))


@pytest.mark.parametrize("hours", [0, 24.1, 10_000])
def test_no_certificate_lives_longer_than_a_day(
    authority: Authority, keys: dict[Algorithm, KeyPair], hours: float
) -> None:
    with pytest.raises(Invalid, match="lifetime"):
        sign(authority, request(keys, hours=hours))


@pytest.mark.parametrize("role", ["Admin", "a@b", "", "x" * 60])
def test_only_roles_are_signed(authority: Authority, keys: dict[Algorithm, KeyPair], role: str) -> None:
    with pytest.raises(Invalid):
        sign(authority, request(keys, role=role))


def test_a_public_key_that_is_none_is_refused(authority: Authority) -> None:
    with pytest.raises(Malformed):
        sign(authority, Request("web", "vm", {Algorithm.RSA: PublicKeys("x", "y")}, 60))


class Signer:
    """An issuer in this process, and what it does to its answers."""

    def __init__(self, authority: Authority, spoil: dict[Algorithm, Certificates] | None = None) -> None:
        self._authority = authority
        self._spoil = spoil

    async def issue(self, role: str, holder: str, keys: dict[Algorithm, PublicKeys]) -> Answer:
        answer = sign(self._authority, Request(role, holder, dict(keys), 3600))
        return answer if self._spoil is None else structs.replace(answer, certificates=self._spoil)


async def test_credentials_end_with_the_first_of_their_certificates(
    authority: Authority, keys: dict[Algorithm, KeyPair]
) -> None:
    now = datetime.now(UTC)
    made = await issue(Signer(authority), "web", "vm", keys, now)  # type: ignore[arg-type]

    assert timedelta(minutes=59) < made.expires_at - now <= timedelta(hours=1, seconds=1)
    assert made.files()["X.509-key"] == keys[Algorithm.RSA].private_pem


async def test_an_answer_for_other_keys_or_from_the_past_is_not_taken(
    authority: Authority, keys: dict[Algorithm, KeyPair]
) -> None:
    now = datetime.now(UTC)
    others = sign(authority, request(make_keys())).certificates
    for spoil in (others, {}):
        with pytest.raises(HostFailure):
            await issue(Signer(authority, spoil), "web", "vm", keys, now)  # type: ignore[arg-type]
    with pytest.raises(HostFailure, match="have ended"):
        await issue(Signer(authority), "web", "vm", keys, now + timedelta(days=1))  # type: ignore[arg-type]
    nonsense = {algorithm: Certificates("x", "y") for algorithm in Algorithm}
    with pytest.raises(Malformed):
        await issue(Signer(authority, nonsense), "web", "vm", keys, now)  # type: ignore[arg-type]
