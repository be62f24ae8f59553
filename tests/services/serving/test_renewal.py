"""Certificates renew themselves: a service and its administrator over months, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from atoll.api.access import Access
from atoll.api.route import NOTHING, Call, Unary, bind
from atoll.api.server import application
from atoll.errors import HostFailure
from atoll.identity import certificates, store, tls, validity
from atoll.identity.access import Operators
from atoll.identity.authority import Authority
from atoll.identity.claims import server_claims, user_claims
from atoll.identity.index import format_serial
from atoll.identity.renewal import AuthorityRenewer
from atoll.identity.signer import Renewal, renew
from atoll.serving.gate import CertificateGate
from atoll.serving.tls import Pki, Tls, keep_certificate
from tls_clock import set_time

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
STEP = timedelta(hours=6)
WHO = Unary(
    "who.show",
    "GET",
    "/who",
    summary="",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=str,
)


class Cloud:
    """What `atoll up` leaves, an agent that serves, and an administrator; all by one clock."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        self.authority = Authority.create(directory / "pki", "test", now=self.time)
        self.server = store.server_credential(directory / "server")
        self.admin = store.client_credential(directory / "client")
        names = server_claims(("127.0.0.1",))
        store.ensure(self.server, self.authority, names, certificates.SERVER_LIFETIME, START)
        store.ensure(self.admin, self.authority, user_claims("admin"), certificates.ADMIN_LIFETIME, START)
        files = self.server
        crls = (self.authority.crl_path,)
        self.tls = Tls(Pki(self.authority.cert_path, files.cert, files.key, crls))
        self.url = ""

    def time(self) -> datetime:
        return self.now

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def who(call: Call[None, None]) -> str:
            return call.identity.user

        gate = CertificateGate(self.tls.peers, Operators, now=self.time)
        runner = web.AppRunner(application([bind(WHO, who)], gate), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls.context).start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}/who"
            yield
        finally:
            await runner.cleanup()

    def command(self) -> ssl.SSLContext:
        """What a command does before it connects."""
        store.renew_if_past_half_life(self.admin, lambda: self.authority, self.now)
        context = tls.client_context(self.admin.ca, self.admin.cert, self.admin.key)
        set_time(self.tls.context, self.now)
        return set_time(context, self.now)

    async def ask(self, context: ssl.SSLContext) -> str:
        async with aiohttp.ClientSession() as session, session.get(self.url, ssl=context) as response:
            return str(await response.json())

    async def keep(self, renewer: Any, until: datetime, between: Callable[[], Any]) -> None:
        """Run the keeper; the clock moves in its pauses, and then `between` is awaited."""

        class Over(Exception):
            pass

        async def pause(_: float) -> None:
            self.now += STEP
            if self.now >= until:
                raise Over
            await between()

        with pytest.raises(Over):
            await keep_certificate(self.tls.certificate, renewer, now=self.time, sleep=pause)


class SignerHere:
    """What a signer process does, by the clock of the test; it can be out of order."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.asked = 0
        self.broken_until = START

    async def renew(self, cert_pem: bytes) -> bytes:
        self.asked += 1
        if self.cloud.now < self.broken_until:
            raise HostFailure("asking the signer: it is broken")
        return renew(self.cloud.authority, Renewal(cert_pem.decode())).certificate.encode()


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


async def test_for_sixty_days_every_command_is_answered(cloud: Cloud):
    signer, answers, ends = SignerHere(cloud), [], set()

    async def command() -> None:
        answers.append(await cloud.ask(cloud.command()))
        ends.add(cloud.tls.certificate.validity.not_after)

    async with cloud.serving():
        await cloud.keep(signer, START + 60 * DAY, command)
    assert answers == ["admin"] * 239
    assert len(ends) == 4
    assert signer.asked == 3  # once per half of its life, and no more


async def test_without_a_renewer_the_same_days_end_in_a_refusal(cloud: Cloud):
    """The clock of the test is one that refuses: otherwise the test above would say nothing."""

    async def wait() -> None:
        pass

    async with cloud.serving():
        await cloud.keep(None, START + 29 * DAY, wait)
        assert await cloud.ask(cloud.command()) == "admin"
        await cloud.keep(None, START + 31 * DAY, wait)
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="expired"):
            await cloud.ask(cloud.command())


async def test_an_administrator_who_was_away_for_weeks_is_answered(cloud: Cloud):
    async with cloud.serving():
        cloud.now = START + 10 * DAY
        assert await cloud.ask(cloud.command()) == "admin"
        context = cloud.command()
        cloud.now += 8 * DAY
        set_time(cloud.tls.context, cloud.now)
        with pytest.raises(aiohttp.ClientConnectionError):
            await cloud.ask(set_time(context, cloud.now))


async def test_a_renewer_that_is_broken_for_days_is_asked_again(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
):
    signer = SignerHere(cloud)
    signer.broken_until = START + 29 * DAY

    async def command() -> None:
        assert await cloud.ask(cloud.command()) == "admin"

    with caplog.at_level(logging.INFO, logger="atoll.serving.tls"):
        async with cloud.serving():
            # Each pause of the test is hours long: so that it tries often, it is started anew now and then.
            for days in range(1, 46):
                await cloud.keep(signer, START + days * DAY, command)
    said = [record for record in caplog.records if "renewing it failed: asking the signer" in record.message]
    assert {record.levelno for record in said} == {logging.WARNING, logging.ERROR}
    assert cloud.tls.certificate.validity.not_after > START + 55 * DAY
    assert any("renewed certificate" in record.message for record in caplog.records)


@pytest.mark.parametrize("first", ["key", "cert"])
async def test_a_pair_that_is_replaced_in_two_steps_serves_throughout(
    cloud: Cloud, first: str, caplog: pytest.LogCaptureFixture
):
    fresh = cloud.authority.issue_server(["127.0.0.1"])
    steps = [
        lambda: cloud.server.key.write_bytes(fresh.key_pem),
        lambda: cloud.server.cert.write_bytes(fresh.cert_pem),
    ]
    if first == "cert":
        steps.reverse()
    serials = []

    async def look() -> None:
        serials.append(await served_serial(cloud))
        if len(serials) in (2, 5):
            steps.pop(0)()

    async with cloud.serving():
        await cloud.keep(None, START + 2 * DAY, look)
    old = cloud.authority.list_issued()[0].serial
    assert serials == [old] * 5 + [fresh.serial] * 2
    said = [record for record in caplog.records if "key_values_mismatch" in record.message]
    assert len(said) == 1


async def test_files_that_vanish_for_a_while_do_not_end_it(cloud: Cloud):
    kept = cloud.server.cert.read_bytes()
    answers = []

    async def look() -> None:
        answers.append(await cloud.ask(cloud.command()))
        match len(answers):
            case 1:
                cloud.server.cert.unlink()
            case 3:
                cloud.server.cert.write_bytes(b"rubbish")
            case 5:
                cloud.server.cert.write_bytes(kept)

    async with cloud.serving():
        await cloud.keep(SignerHere(cloud), START + 2 * DAY, look)
    assert answers == ["admin"] * 7


async def test_a_certificate_for_another_key_is_not_taken_from_a_renewer(cloud: Cloud):
    class Stranger:
        async def renew(self, cert_pem: bytes) -> bytes:
            return cloud.authority.issue_server(["127.0.0.1"]).cert_pem

    before = cloud.server.cert.read_bytes()
    cloud.now = START + 20 * DAY

    async def command() -> None:
        assert await cloud.ask(cloud.command()) == "admin"

    async with cloud.serving():
        await cloud.keep(Stranger(), START + 22 * DAY, command)
    assert cloud.server.cert.read_bytes() == before


async def test_what_cannot_be_foreseen_is_raised(cloud: Cloud):
    class Bug:
        async def renew(self, cert_pem: bytes) -> bytes:
            raise ZeroDivisionError

    cloud.now = START + 20 * DAY
    with pytest.raises(ZeroDivisionError):
        await keep_certificate(cloud.tls.certificate, Bug(), now=cloud.time)


async def test_an_agent_that_starts_with_a_certificate_that_is_over_renews_it_at_once(tmp_path: Path):
    """With the real signer process and the real clock."""
    long_ago = datetime.now(UTC) - 40 * DAY
    authority = Authority.create(tmp_path / "pki", "test", now=lambda: long_ago)
    files = store.server_credential(tmp_path / "server")
    store.ensure(files, authority, server_claims(("127.0.0.1",)), certificates.SERVER_LIFETIME, long_ago)
    key = files.key.read_bytes()
    pki = Pki(
        authority.cert_path, files.cert, files.key, (authority.crl_path,), authority=authority.directory
    )
    served = Tls(pki)
    assert served.certificate.validity.over(datetime.now(UTC))
    keeping = asyncio.create_task(served.keep_certificate())
    for _ in range(200):
        await asyncio.sleep(0.05)
        if not served.certificate.validity.over(datetime.now(UTC)):
            break
    keeping.cancel()
    assert served.certificate.validity.not_after > datetime.now(UTC) + 29 * DAY
    assert validity.of_pem(files.cert.read_bytes()) == served.certificate.validity
    assert files.key.read_bytes() == key
    assert Authority.open(tmp_path / "pki").list_issued()[-1].names == ("127.0.0.1",)


async def test_the_signer_renews_servers_and_nobody_else(tmp_path: Path):
    authority = Authority.create(tmp_path / "pki", "test")
    renewer = AuthorityRenewer(authority.directory)
    with pytest.raises(HostFailure, match="renewing the certificate of ann: it is that of a user"):
        await renewer.renew(authority.issue_user("ann").cert_pem)
    server = authority.issue_server(["127.0.0.1"])
    authority.revoke(server.serial)
    with pytest.raises(HostFailure, match="it was revoked"):
        await renewer.renew(server.cert_pem)


async def served_serial(cloud: Cloud) -> str:
    host, port = cloud.url.removeprefix("https://").removesuffix("/who").split(":")
    context = set_time(tls.client_context(cloud.authority.cert_path), cloud.now)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return format_serial(certificates.from_der(der).serial_number)
