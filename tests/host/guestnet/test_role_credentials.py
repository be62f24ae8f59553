"""Credentials of a VM's role, from issuer and broker to the guest: real signers, real TLS, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_pem_public_key,
    load_ssh_public_identity,
)
from msgspec import structs

from atoll.errors import Denied, HostFailure, Unreachable
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.server import MetadataServer
from atoll.hypervisor.credentials import NO_BROKER, Credentials
from atoll.hypervisor.vms.credential_store import CredentialStore
from atoll.hypervisor.vms.records import Records
from atoll.identity import tls
from atoll.identity.authority import Authority
from atoll.identity.brokers import Broker, HttpsBroker, StaticBroker
from atoll.identity.claims import user_claims
from atoll.identity.https import fetch
from atoll.identity.issuers import AuthorityIssuer, HttpsIssuer, HttpsService, RoleIssuer, issue
from atoll.identity.roles import Algorithm, CloudCredential, RoleCallers, make_keys
from atoll.identity.ssh_authority import SshAuthority
from atoll.model.vm import VM
from atoll.system import clock
from atoll.system.writer import Writer
from known_callers import KnownCallers
from role_credentials import a_credential, secret_lines

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

IDENTITY = "/latest/dynamic/instance-identity"
HOUR = timedelta(hours=1)
ROLES = RoleCallers(users=("web", "db"))
SECRET = "wJalrXUtnFEMI/K7MDENG"
BOTO3 = """
import json, boto3
from botocore.utils import IMDSRegionProvider
region = IMDSRegionProvider(boto3.Session()._session, environ={}).provide()
found = boto3.Session().get_credentials()
frozen = found and found.get_frozen_credentials()
keys = [found.method, frozen.access_key, frozen.secret_key, frozen.token] if found else None
print(json.dumps({"region": region, "keys": keys}))
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "Test CA")


class Pki:
    """Files of those that talk to each other here: a server, and a node with the right to ask for roles."""

    def __init__(self, authority: Authority, directory: Path) -> None:
        self.ca = authority.cert_path
        for name, issued in (
            ("server", authority.issue_server(["127.0.0.1"])),
            ("node", authority.issue_user("web")),
            ("other", authority.issue_user("db")),
        ):
            (directory / f"{name}.pem").write_bytes(issued.cert_pem)
            (directory / f"{name}.key").write_bytes(issued.key_pem)
        self.directory = directory

    @contextlib.asynccontextmanager
    async def server(self, *routes: web.RouteDef) -> AsyncIterator[str]:
        """An HTTPS server that insists on a certificate."""
        context = tls.server_context(self.directory / "server.pem", self.directory / "server.key", self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            yield f"https://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@pytest.fixture
def pki(authority: Authority, tmp_path: Path) -> Pki:
    return Pki(authority, tmp_path)


def caller(request: web.Request) -> str:
    assert request.transport is not None
    der = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    (name,) = x509.load_der_x509_certificate(der).subject
    return str(name.value)


def keymaster(authority: Authority) -> web.RouteDef:
    """An issuer like Keymaster: whoever shows a certificate gets others of the same name."""
    ssh = SshAuthority(authority.directory)
    ssh.ensure()

    async def certgen(request: web.Request) -> web.Response:
        role = request.match_info["role"]
        if caller(request) != role:
            return web.Response(status=403)
        form = await request.post()
        file = form["pubkeyfile"]
        assert isinstance(file, web.FileField)
        public = file.file.read()
        if request.query["type"] == "ssh":
            line = ssh.sign(public.decode(), [role], role, now=clock.now(), lifetime=HOUR)
            return web.Response(text=line)
        made = authority.certify(user_claims(role), load_pem_public_key(public), HOUR)  # type: ignore[arg-type]
        return web.Response(body=made.cert_pem)

    return web.post("/certgen/{role}", certgen)


def sts(said: list[str], lifetime: timedelta = HOUR) -> web.RouteDef:
    """A broker that takes note of who called."""

    async def answer(request: web.Request) -> web.Response:
        said.append(caller(request))
        return web.json_response(
            {
                "AccessKeyId": f"ASIA{len(said)}",
                "SecretAccessKey": SECRET,
                "SessionToken": f"session of {request.match_info['role']}",
                "Expiration": f"{clock.now() + lifetime:%Y-%m-%dT%H:%M:%SZ}",
            }
        )

    return web.get("/roles/{role}", answer)


@contextlib.asynccontextmanager
async def metadata(
    island: Island,
    station: Station,
    issuer: RoleIssuer,
    broker: Broker | None = None,
    own: CredentialStore | None = None,
) -> AsyncIterator[Credentials]:
    """The metadata service of a guest with a role, as the agent wires it."""
    station.configure()
    ends_at = clock.now() + HOUR if own is not None else None
    vm: VM = structs.replace(station.vm, role="web", role_credential_expires_at=ends_at)

    async def tell(told: VM, problem: str, cloud: str) -> None:
        nonlocal vm
        vm = structs.replace(told, role_problem=problem, role_cloud=cloud)

    credentials = Credentials(issuer, broker, lambda: [vm], own=own, tell=tell)

    def guest_at(ip: str) -> Guest | None:
        known = Guest(vm, subnet=station.lease.subnet, credentials=credentials.of(vm))
        return known if ip == vm.ip else None

    server = MetadataServer(island.service, KnownCallers(guests=guest_at, credentials=credentials))
    await server.start()
    try:
        yield credentials
    finally:
        credentials.close()
        await server.close()


async def files_of(station: Station) -> dict[str, bytes]:
    """Everything that the guest finds beside its identity document."""
    names = (await station.ask(f"{IDENTITY}/")).body.decode().split()
    return {name: (await station.ask(f"{IDENTITY}/{name}")).body for name in names if name != "document"}


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_the_guest_finds_certificates_and_keys_that_stock_tools_take(
    island: Island, good: Station, authority: Authority, pki: Pki, tmp_path: Path
) -> None:
    async with metadata(island, good, AuthorityIssuer(authority.directory)):
        found = await files_of(good)

    assert found["X.509-key"] == found["RSA-X.509-key"]
    assert found["X.509-ca-certificate"] == authority.cert_pem
    for algorithm in Algorithm:
        for kind in ("X.509", "SSH"):
            for part in ("certificate", "key"):
                (tmp_path / f"{algorithm}-{kind}-{part}").write_bytes(found[f"{algorithm}-{kind}-{part}"])
                (tmp_path / f"{algorithm}-{kind}-{part}").chmod(0o600)
        who = []

        async def greet(request: web.Request, who: list[str] = who) -> web.Response:
            who.append(caller(request))
            return web.Response()

        context = tls.client_context(
            pki.ca, tmp_path / f"{algorithm}-X.509-certificate", tmp_path / f"{algorithm}-X.509-key"
        )
        async with pki.server(web.get("/", greet)) as url:
            await fetch("greeting", context, "GET", url)
        assert who == ["web@role"]

        shown = await run("ssh-keygen", "-L", "-f", str(tmp_path / f"{algorithm}-SSH-certificate"))
        assert "user certificate" in shown
        assert "web@role 10.77.0.5 i-good" in shown
        assert shown.split("Principals:")[1].split()[0] == "web"
        public = await run("ssh-keygen", "-y", "-f", str(tmp_path / f"{algorithm}-SSH-key"))
        assert public.split()[1] == key_in(tmp_path / f"{algorithm}-SSH-certificate")


def key_in(certificate: Path) -> str:
    """The key in an SSH certificate."""
    found = load_ssh_public_identity(certificate.read_bytes())
    assert isinstance(found, SSHCertificate)
    found.verify_cert_signature()
    return found.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode().split()[1]


async def test_a_keymaster_issues_over_https_to_a_node_that_may_ask(
    island: Island, good: Station, authority: Authority, pki: Pki, tmp_path: Path
) -> None:
    async with pki.server(keymaster(authority)) as url:
        service = HttpsService(url, pki.ca, tmp_path / "node.pem", tmp_path / "node.key")
        async with metadata(island, good, HttpsIssuer(service, ROLES)):
            found = await files_of(good)
        made = x509.load_pem_x509_certificate(found["Ed25519-X.509-certificate"])
        assert [name.value for name in made.subject] == ["web"]

        other = HttpsIssuer(
            structs.replace(service, certificate=tmp_path / "other.pem", key=tmp_path / "other.key"), ROLES
        )
        with pytest.raises(Denied, match=r"role web: it answered 403$"):
            await issue(other, "web", "vm", make_keys(), clock.now())
    with pytest.raises(Unreachable, match="asking https://127"):
        await issue(HttpsIssuer(service, ROLES), "web", "vm", make_keys(), clock.now())


async def test_a_guest_that_came_with_a_credential_gets_short_lived_ones_and_never_that_one(
    island: Island, good: Station, authority: Authority, pki: Pki, tmp_path: Path
) -> None:
    records = Records(tmp_path / "state", Writer())
    records.prepare()
    records.directory(good.vm.ip).mkdir()
    given = a_credential(authority)
    await records.credentials.write(good.vm, given)
    callers: list[str] = []
    async with pki.server(keymaster(authority), sts(callers)) as url:
        # By its own right the node gets nothing for this role.
        service = HttpsService(url, pki.ca, tmp_path / "other.pem", tmp_path / "other.key")
        broker = HttpsBroker(f"{url}/roles", pki.ca)
        async with metadata(island, good, HttpsIssuer(service, ROLES), broker, records.credentials):
            found = await files_of(good)
            cloud = await good.ask("/latest/meta-data/iam/security-credentials/web")
    made = x509.load_pem_x509_certificate(found["X.509-certificate"])
    assert [name.value for name in made.subject] == ["web"]
    assert made.not_valid_after_utc < clock.now() + 2 * HOUR
    assert json.loads(cloud.body)["SecretAccessKey"] == SECRET
    assert callers == ["web"]
    for line in secret_lines(given):
        assert not any(line.encode() in content for content in found.values())


async def boto3_in(station: Station) -> dict[str, object]:
    """What an unmodified boto3 finds out in a guest."""
    said = await run(
        *("ip", "netns", "exec", station.namespace, "env", "-i", "HOME=/nonexistent"),
        *(sys.executable, "-c", BOTO3),
    )
    found: dict[str, object] = json.loads(said)
    return found


async def test_boto3_picks_region_and_credentials_up_unmodified(
    island: Island, good: Station, authority: Authority, pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    callers: list[str] = []
    async with pki.server(sts(callers)) as url:
        broker = HttpsBroker(f"{url}/roles", pki.ca)
        async with metadata(island, good, AuthorityIssuer(authority.directory), broker):
            found = await boto3_in(good)
            role = await good.ask("/latest/meta-data/iam/security-credentials/")

    assert found == {"region": "atoll-1", "keys": ["iam-role", "ASIA1", SECRET, "session of web"]}
    assert role.body == b"web"
    assert callers == ["web@role"]
    told = caplog.text
    assert SECRET not in told
    assert "PRIVATE KEY" not in told


async def test_without_a_broker_boto3_finds_the_region_and_no_credentials_and_the_guest_is_told_why(
    island: Island, good: Station, authority: Authority
) -> None:
    async with metadata(island, good, AuthorityIssuer(authority.directory), None):
        found = await boto3_in(good)
        told = await good.ask("/latest/meta-data/iam/security-credentials/web")
    assert found == {"region": "atoll-1", "keys": None}
    assert json.loads(told.body) == {"Code": "Failed", "Message": NO_BROKER}


async def test_what_is_past_half_of_its_life_is_renewed_for_the_same_keys(
    island: Island, good: Station, authority: Authority
) -> None:
    now = [clock.now()]
    vm = structs.replace(good.vm, role="web")
    cloud = CloudCredential("ASIA", SECRET, "t", now[0], now[0] + timedelta(days=1))
    issuer = AuthorityIssuer(authority.directory, HOUR)
    credentials = Credentials(issuer, StaticBroker(cloud), lambda: [vm], lambda: now[0])
    try:
        await credentials.settle(vm)
        first = credentials.of(vm)
        assert first is not None
        now[0] += timedelta(minutes=29)
        await asyncio.gather(*credentials.look())
        assert credentials.of(vm) == first

        now[0] += timedelta(minutes=2)
        await asyncio.gather(*credentials.look())
        second = credentials.of(vm)
        assert second is not None
        assert second.keys == first.keys
        assert second.cloud == cloud
        for algorithm in Algorithm:
            assert second.certificates[algorithm] != first.certificates[algorithm]
    finally:
        credentials.close()


async def test_an_issuer_that_is_away_leaves_what_is_still_good(
    island: Island, good: Station, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    now = [clock.now()]
    vm = structs.replace(good.vm, role="web")
    credentials = Credentials(AuthorityIssuer(authority.directory, HOUR), None, lambda: [vm], lambda: now[0])
    try:
        await credentials.settle(vm)
        authority.cert_path.rename(authority.cert_path.with_suffix(".away"))
        now[0] += timedelta(minutes=45)
        await asyncio.gather(*credentials.look())
        assert credentials.of(vm) is not None
        assert "credentials of VM 10.77.0.5 for role web" in caplog.text
        now[0] += timedelta(minutes=20)
        assert credentials.of(vm) is None
    finally:
        credentials.close()


async def test_the_signer_refuses_what_is_no_role_and_what_lives_too_long(authority: Authority) -> None:
    keys = {algorithm: pair.public for algorithm, pair in make_keys().items()}
    for role, lifetime in (("admin@x", HOUR), ("web", timedelta(days=2))):
        with pytest.raises(HostFailure):
            await AuthorityIssuer(authority.directory, lifetime).issue(role, "vm", keys)
    assert authority.list_issued() == ()
