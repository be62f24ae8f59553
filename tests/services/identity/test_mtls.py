"""Certificates on the real wire: an aiohttp server on loopback, and clients of every kind."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from atoll.errors import HostFailure, Unauthenticated
from atoll.identity import certificates, store, tls
from atoll.identity.authority import Authority, Issued
from atoll.identity.claims import server_claims, user_claims
from atoll.identity.index import format_serial
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.trust import read_cas


class Node:
    """A CA, and a server that tells its callers who they are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "ca", "test")
        self.server = self.keep("server", self.authority.issue_server(["127.0.0.1", "node1"]))
        self.time = datetime.now(UTC)
        self.ports: list[int] = []
        cas = read_cas(self.authority.cert_pem)
        self.revocations = Revocations([self.authority.crl_path], cas)
        self.peers = PeerReader(cas, self.revocations)

    def keep(self, name: str, issued: Issued) -> store.Credential:
        files = store.Credential(
            self.directory / f"{name}.pem", self.directory / f"{name}.key", self.authority.cert_path
        )
        files.cert.write_bytes(issued.cert_pem)
        files.key.write_bytes(issued.key_pem)
        return files

    def context(self, files: store.Credential | None = None) -> ssl.SSLContext:
        if files is None:
            return tls.client_context(self.authority.cert_path)
        return tls.client_context(files.ca, files.cert, files.key)

    def user(self, name: str = "ann", **claims) -> ssl.SSLContext:
        return self.context(self.keep(name, self.authority.issue_user(name, **claims)))

    async def who(self, request: web.Request) -> web.Response:
        self.ports.append(request.get_extra_info("peername")[1])
        der = request.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            identity = self.peers.identity(der, self.time)
        except Unauthenticated as error:
            return web.json_response({"brief": error.brief}, status=error.http_status)
        return web.json_response({"user": identity.user, "groups": sorted(identity.groups)})

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    @asynccontextmanager
    async def serving(
        self, files: store.Credential | None = None
    ) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
        files = files or self.server
        context = tls.server_context(files.cert, files.key, files.ca)
        app = web.Application()
        app.add_routes([web.get("/who", self.who), web.get("/healthz", self.healthz)])
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            yield f"https://127.0.0.1:{runner.addresses[0][1]}", context
        finally:
            await runner.cleanup()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def get(url: str, context: ssl.SSLContext, name: str | None = None) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context, server_hostname=name) as response,
    ):
        return response.status, await response.text()


def address_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("https://").split(":")
    return host, int(port)


async def refusal(url: str, server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The server ends the connection without an answer. asyncio tells nobody why, so a second handshake in
    memory, with the same contexts, tells the reason."""
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(f"{url}/healthz", client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    answerer = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (caller, answerer) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            assert side is answerer
            return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
    return "accepted"


async def test_a_user_is_known_by_certificate(node: Node):
    async with node.serving() as (url, _):
        status, text = await get(f"{url}/who", node.user("ann", groups=["ops"]))
    assert (status, text) == (200, '{"user": "ann", "groups": ["ops"]}')


async def test_without_certificate_only_the_public_route_answers(node: Node):
    async with node.serving() as (url, _):
        assert await get(f"{url}/healthz", node.context()) == (200, "ok")
        status, text = await get(f"{url}/who", node.context())
    assert status == 401
    assert "none was presented" in text


async def test_a_certificate_of_another_ca_is_refused_in_the_handshake(node: Node, tmp_path: Path):
    stranger = trustme.CA().issue_cert("ann@example.org", common_name="ann")
    context = node.context()
    stranger.configure_cert(context)
    async with node.serving() as (url, server):
        assert await refusal(url, server, context) == "unable to get local issuer certificate"


async def test_a_ca_of_the_same_name_is_another_ca(node: Node, tmp_path: Path):
    twin = Authority.create(tmp_path / "twin", "test").issue_user("ann")
    async with node.serving() as (url, server):
        assert (
            await refusal(url, server, node.context(node.keep("twin", twin)))
            == "unable to get local issuer certificate"
        )


async def test_a_user_cannot_issue_certificates(node: Node):
    ann = node.authority.issue_user("ann")
    key = certificates.make_key()
    forged = certificates.issue(
        user_claims("admin"),
        key.public_key(),
        certificates.from_pem(ann.cert_pem),
        certificates.key_from_pem(ann.key_pem),
        serial=5,
        now=node.time,
        lifetime=timedelta(hours=1),
    )
    chain = certificates.to_pem(forged) + ann.cert_pem
    files = node.keep("forged", Issued(chain, "05", node.time, certificates.key_to_pem(key)))
    async with node.serving() as (url, server):
        assert await refusal(url, server, node.context(files)) == "invalid CA certificate"


@pytest.mark.parametrize(
    ("days", "reason"), [(-30, "certificate has expired"), (30, "certificate is not yet valid")]
)
async def test_an_expired_or_not_yet_valid_certificate_is_refused_in_the_handshake(
    node: Node, days: int, reason: str
):
    moment = node.time + timedelta(days=days)
    elsewhen = Authority.open(node.authority.directory, now=lambda: moment)
    files = node.keep("ann", elsewhen.issue_user("ann"))
    async with node.serving() as (url, server):
        assert await refusal(url, server, node.context(files)) == reason


async def test_a_server_certificate_cannot_be_used_to_call(node: Node):
    async with node.serving() as (url, server):
        assert await refusal(url, server, node.context(node.server)) == "unsuitable certificate purpose"


async def test_a_user_certificate_cannot_be_used_to_serve(node: Node):
    async with node.serving(node.keep("ann", node.authority.issue_user("ann"))) as (url, _):
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="purpose"):
            await get(f"{url}/healthz", node.context(), name="ann")


async def test_a_service_certificate_serves_and_calls(node: Node):
    files = node.keep("agent", node.authority.issue_service("agent", ["127.0.0.1"]))
    async with node.serving(files) as (url, _):
        status, text = await get(f"{url}/who", node.context(files))
    assert (status, text) == (200, '{"user": "agent", "groups": []}')


async def test_revocation_cuts_off_a_connection_that_is_open(node: Node):
    context = node.user("ann")
    async with node.serving() as (url, _), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/who", ssl=context) as response:
            assert response.status == 200
        node.authority.revoke_subject("ann")
        node.revocations.look_again()
        async with session.get(f"{url}/who", ssl=context) as response:
            assert response.status == 401
            assert "ann was revoked" in await response.text()
        assert len(node.ports) == 2
        assert len(set(node.ports)) == 1
        assert (await get(f"{url}/who", context))[0] == 401
        assert (await get(f"{url}/who", node.user("bob")))[0] == 200


async def test_a_connection_does_not_outlive_its_certificate(node: Node):
    context = node.user("ann", lifetime=timedelta(hours=1))
    async with node.serving() as (url, _), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/who", ssl=context) as response:
            assert response.status == 200
        node.time += timedelta(hours=2)
        async with session.get(f"{url}/who", ssl=context) as response:
            assert response.status == 401
            assert "ann expired at" in await response.text()
    assert len(node.ports) == 2
    assert len(set(node.ports)) == 1


async def test_the_servers_address_and_name_are_verified(node: Node):
    async with node.serving() as (url, _):
        assert (await get(f"{url}/healthz", node.context()))[0] == 200
        assert (await get(f"{url}/healthz", node.context(), name="node1"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="Hostname mismatch"):
            await get(f"{url}/healthz", node.context(), name="node2")
    elsewhere = node.keep("elsewhere", node.authority.issue_server(["127.0.0.2"]))
    async with node.serving(elsewhere) as (url, _):
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="IP address mismatch"):
            await get(f"{url}/healthz", node.context())


async def test_a_client_does_not_trust_a_server_of_another_ca(node: Node, tmp_path: Path):
    other = Authority.create(tmp_path / "other", "test")
    async with node.serving() as (url, _):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(f"{url}/healthz", tls.client_context(other.cert_path))


async def test_tls_below_1_2_is_refused(node: Node):
    context = node.context()
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with node.serving() as (url, server):
        assert await refusal(url, server, context) == "UNSUPPORTED_PROTOCOL"


async def served_serial(url: str, context: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection(*address_of(url), ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return format_serial(certificates.from_der(der).serial_number)


async def test_a_renewed_certificate_is_taken_up_without_a_restart(node: Node):
    files = node.server
    old = node.authority.list_issued()[0].serial
    user = node.user("ann")
    async with node.serving() as (url, context), aiohttp.ClientSession() as session:
        certificate = tls.ServerCertificate(context, files.cert, files.key)
        assert not certificate.reload_if_changed()
        async with session.get(f"{url}/who", ssl=user) as response:
            assert response.status == 200
        renewed = node.authority.renew(files.cert.read_bytes())
        files.cert.write_bytes(renewed.cert_pem)
        assert await served_serial(url, node.context()) == old
        assert certificate.reload_if_changed()
        assert not certificate.reload_if_changed()
        assert await served_serial(url, node.context()) == renewed.serial
        async with session.get(f"{url}/who", ssl=user) as response:
            assert response.status == 200
    assert len(node.ports) == 2
    assert len(set(node.ports)) == 1


@pytest.mark.parametrize("first", ["key", "cert"])
async def test_a_half_replaced_pair_of_files_does_not_break_a_running_server(node: Node, first: str):
    files = node.server
    old = node.authority.list_issued()[0].serial
    fresh = node.authority.issue_server(["127.0.0.1"])
    async with node.serving() as (url, context):
        certificate = tls.ServerCertificate(context, files.cert, files.key)
        if first == "key":
            files.key.write_bytes(fresh.key_pem)
        else:
            files.cert.write_bytes(fresh.cert_pem)
        with pytest.raises(HostFailure, match="key_values_mismatch"):
            certificate.reload_if_changed()
        assert await served_serial(url, node.context()) == old
        files.key.write_bytes(fresh.key_pem)
        files.cert.write_bytes(fresh.cert_pem)
        assert certificate.reload_if_changed()
        assert await served_serial(url, node.context()) == fresh.serial


def test_files_that_cannot_be_loaded_are_named_with_a_hint(node: Node, tmp_path: Path):
    ca, missing = node.authority.cert_path, tmp_path / "missing.pem"
    with pytest.raises(Unauthenticated, match=r"missing\.pem: no such file") as caught:
        tls.client_context(ca, missing, missing)
    assert "atoll up" in caught.value.hint
    with pytest.raises(HostFailure, match=r"missing\.pem: no such file"):
        tls.server_context(missing, missing, ca)
    missing.write_text("rubbish")
    with pytest.raises(Unauthenticated, match="not a usable certificate and key"):
        tls.client_context(ca, missing, missing)


def test_processes_that_issue_at_once_wait_for_each_other(tmp_path: Path):
    authority = Authority.create(tmp_path / "ca", "test")
    program = (
        "import sys; from pathlib import Path; from atoll.identity.authority import Authority\n"
        "for number in range(5):\n"
        "    ca = Authority.ensure(Path(sys.argv[1]), 'test')\n"
        "    ca.revoke(ca.issue_user(f'{sys.argv[2]}-{number}').serial)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(authority.directory), f"user{number}"])
        for number in range(4)
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0, 0]
    issued = authority.list_issued()
    assert {record.subject for record in issued} == {f"user{n}-{m}" for n in range(4) for m in range(5)}
    (ca,) = read_cas(authority.cert_pem)
    revocations, now = Revocations([authority.crl_path], [ca]), datetime.now(UTC)
    assert {revocations.refusal(ca, int(record.serial, 16), now) for record in issued} == {"was revoked"}


def test_checking_the_administrators_certificate_does_not_load_cryptography(tmp_path: Path):
    authority = Authority.create(tmp_path / "ca", "test")
    files = store.client_credential(tmp_path / "client")
    store.ensure(files, authority, user_claims("admin"), certificates.ADMIN_LIFETIME, datetime.now(UTC))
    program = (
        "import sys; from datetime import UTC, datetime; from pathlib import Path\n"
        "from atoll.identity import store, tls\n"
        "files = store.client_credential(Path(sys.argv[1]))\n"
        "assert store.renew_if_past_half_life(files, lambda: None, datetime.now(UTC)) == 'kept'\n"
        "tls.client_context(files.ca, files.cert, files.key)\n"
        "assert not any(name.startswith('cryptography') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "client")], check=True, timeout=60)


async def test_a_server_with_a_credential_from_the_store_is_trusted(node: Node, tmp_path: Path):
    files = store.server_credential(tmp_path / "server")
    claims = server_claims(("127.0.0.1",))
    store.ensure(files, node.authority, claims, certificates.SERVER_LIFETIME, node.time)
    async with node.serving(files) as (url, _):
        assert (await get(f"{url}/who", node.user("ann")))[0] == 200
