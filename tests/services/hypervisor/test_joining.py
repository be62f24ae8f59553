"""Somebody without a certificate comes to one by an invitation, and to nothing by anything else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from atoll.api.hypervisor import VM_LIST
from atoll.api.joining import CA_SHOW, INVITATION_REDEEM, Redeem
from atoll.api.observing import AUDIT, AuditQuery
from atoll.api.route import Done
from atoll.errors import AtollError, Conflict, Denied, HostFailure, Invalid, NotFound, TooMany
from atoll.hypervisor.http import joining
from atoll.identity import certificates, requests, tls
from atoll.identity.authority import Authority
from atoll.identity.claims import user_claims
from atoll.identity.contents import Contents
from atoll.identity.enrolment import Enrolment, ca_of
from atoll.identity.invitations import Invitations
from atoll.identity.signer import Redemption, redeem
from atoll.system import clock, steps

HOUR, MONTH = timedelta(hours=1), timedelta(days=30)
LIMITED = user_claims("zoe", ("web",), (), ("vm.list",))


def invite(
    pki: Any, claims: Any = LIMITED, valid_for: timedelta = HOUR, ago: timedelta = timedelta(0)
) -> Redeem:
    """What the holder of a new invitation sends, with a key of their own."""
    kept = Invitations(pki.authority.directory)
    made, secret = kept.add(claims, MONTH, valid_for, clock.now() - ago)
    return Redeem(made.id, secret.hex(), requests.make(certificates.make_key(), "anybody").decode())


@pytest.fixture
async def stranger(node: Any, pki: Any) -> Any:
    """Somebody who has no certificate."""
    from tests.services.hypervisor.conftest import User

    async with User(node, pki.nobody()) as user:
        yield user


async def test_somebody_who_was_invited_is_who_the_invitation_says_and_no_more(
    node, pki, stranger, oper, tmp_path
):
    key = certificates.make_key()
    asked = invite(pki)
    asked = Redeem(asked.id, asked.secret, requests.make(key, "admin").decode())
    joined = await stranger.call(INVITATION_REDEEM, body=asked)

    assert joined.ca.encode() == pki.authority.cert_pem
    leaf = certificates.from_pem(joined.certificate.encode())
    assert Contents(leaf).claims() == LIMITED
    assert certificates.public_key(leaf) == key.public_key()
    assert leaf.not_valid_after_utc - clock.now() > MONTH - HOUR
    (tmp_path / "key").write_bytes(certificates.key_to_pem(key))
    (tmp_path / "cert").write_text(joined.certificate)
    async with node.user("zoe") as zoe:
        zoe._tls = tls.client_context(pki.authority.cert_path, tmp_path / "cert", tmp_path / "key")
        assert await zoe.call(VM_LIST) == ()
        with pytest.raises(Denied, match=r"limited to vm\.list"):
            await zoe.create("web")

    entries = [
        line
        async for line in oper.stream(AUDIT, query=AuditQuery(method=INVITATION_REDEEM.name))
        if not isinstance(line, Done)
    ]
    assert [(one.user, one.result) for one in entries] == [("anonymous", "ok")]
    assert entries[0].brief.startswith("zoe was given certificate ")
    assert entries[0].brief.endswith(", from 127.0.0.1")
    assert asked.secret not in str(entries)


async def test_the_ca_is_shown_to_anybody(pki, stranger):
    assert (await stranger.call(CA_SHOW)).certificate.encode() == pki.authority.cert_pem


async def test_a_token_that_is_no_good_is_refused_whatever_is_wrong_with_it(pki, stranger):
    good, used = invite(pki), invite(pki)
    await stranger.call(INVITATION_REDEEM, body=used)
    said = set()
    for body in (
        used,
        invite(pki, ago=2 * HOUR),
        Redeem(good.id, "0" * 48, good.request),
        Redeem("0" * 16, good.secret, good.request),
    ):
        with pytest.raises(Denied) as refusal:
            await stranger.call(INVITATION_REDEEM, body=body)
        said.add((refusal.value.brief, refusal.value.hint, str(refusal.value.details)))
    assert len(said) == 1
    # None of it has cost the good one anything, and neither does a request that is none.
    with pytest.raises(Invalid, match="certificate request"):
        await stranger.call(INVITATION_REDEEM, body=Redeem(good.id, good.secret, "nothing"))
    assert (await stranger.call(INVITATION_REDEEM, body=good)).certificate


async def test_a_token_that_is_used_by_several_at_once_is_good_for_one_of_them(node, pki):
    from tests.services.hypervisor.conftest import User

    body = invite(pki)

    async def attempt() -> bool:
        async with User(node, pki.nobody()) as user:
            try:
                return bool((await user.call(INVITATION_REDEEM, body=body)).certificate)
            except Denied:
                return False

    assert sorted(await asyncio.gather(*(attempt() for _ in range(4)))) == [False, False, False, True]


async def test_a_secret_is_in_no_error(stranger):
    secret = "0123456789abcdef" * 3
    for body in (
        b'{"id": "x", "secret": "%s", "request": ""}' % secret.encode(),
        b'{"id": "0123456789abcdef", "secret": "%sx", "request": "x"}' % secret.encode(),
        b'{"id": "0123456789abcdef", "secret": ["%s"], "request": "x"}' % secret.encode(),
    ):
        with pytest.raises(AtollError) as refusal:
            await stranger.stream_raw(INVITATION_REDEEM, body)
        error = refusal.value
        assert secret not in f"{error.brief} {error.hint} {error.details}"


async def test_one_address_has_only_so_many_tries(pki, stranger, monkeypatch):
    wrong = Redeem("0" * 16, "0" * 48, invite(pki).request)
    for _ in range(joining.TRIES_AT_ONCE):
        with pytest.raises(Denied):
            await stranger.call(INVITATION_REDEEM, body=wrong)
    with pytest.raises(TooMany, match="too many tokens were tried"):
        await stranger.call(INVITATION_REDEEM, body=wrong)


async def test_where_the_ca_is_elsewhere_nobody_is_invited():
    with pytest.raises(Conflict, match="the CA is elsewhere"):
        await Enrolment().redeem("0" * 16, "0" * 48, "")
    with pytest.raises(NotFound, match="not known here"):
        Enrolment().ca_pem()


def test_the_ca_of_a_server_is_found_in_its_bundle_or_behind_its_certificate(pki, foreign_pki):
    leaf = pki.authority.issue_server(["localhost"]).cert_pem
    ours, others = pki.authority.cert_pem, foreign_pki.authority.cert_pem
    assert ca_of(leaf, others + ours) == ours
    assert ca_of(leaf + ours, others) == ours
    assert ca_of(leaf, others) == b""


def test_a_signer_that_fails_once_an_invitation_was_taken_leaves_it_used(tmp_path: Path):
    authority = Authority.create(tmp_path / "ca", "test")
    made, secret = Invitations(authority.directory).add(LIMITED, MONTH, HOUR, clock.now())
    request = Redemption(made.id, secret.hex(), requests.make(certificates.make_key(), "x").decode())
    steps.arm("invitation.taken:1:ERROR")
    try:
        with pytest.raises(HostFailure):
            redeem(authority, request)
    finally:
        steps.arm("")
    assert authority.list_issued() == ()
    assert redeem(authority, request).certificate == ""
