"""An organisation's own CAs on the real wire: roots, intermediate ones, lists, and what Keymaster issues."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.errors import HostFailure, Unauthenticated
from atoll.identity import tls
from atoll.serving.tls import Pki, Tls
from hierarchy import PKINIT, Leaf, OrgCa, name

SERVER = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


class Place:
    """A service of an organisation: its CAs in one file, its lists in others."""

    def __init__(self, directory: Path, served_by: OrgCa, sent: Sequence[OrgCa] = ()) -> None:
        self.directory = directory
        server = served_by.issue("node1", usages=[ExtendedKeyUsageOID.SERVER_AUTH], names=SERVER, sent=sent)
        self.cert, self.key = server.write(directory, "server")

    def tls(self, cas: Sequence[OrgCa], crls: Sequence[bytes] = (), without_crl: Sequence[str] = ()) -> Tls:
        bundle = self.directory / "bundle.pem"
        bundle.write_bytes(b"".join(ca.pem for ca in cas))
        paths = [self.directory / f"{number}.crl" for number in range(len(crls))]
        for path, content in zip(paths, crls, strict=True):
            path.write_bytes(content)
        return Tls(Pki(bundle, self.cert, self.key, tuple(paths), tuple(without_crl)))

    def client(self, leaf: Leaf | None, trusting: OrgCa) -> ssl.SSLContext:
        ca = self.directory / "trusted.pem"
        ca.write_bytes(trusting.pem)
        if leaf is None:
            return tls.client_context(ca)
        return tls.client_context(ca, *leaf.write(self.directory, "client"))


@asynccontextmanager
async def serving(served: Tls) -> AsyncIterator[str]:
    async def who(request: web.Request) -> web.Response:
        der = request.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            found = served.peers.identity(der, datetime.now(UTC))
        except Unauthenticated as error:
            return web.json_response({"brief": error.brief}, status=401)
        return web.json_response(
            {"user": found.user, "groups": sorted(found.groups), "methods": sorted(found.methods)}
        )

    app = web.Application()
    app.add_routes([web.get("/who", who)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served.context).start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/who"
    finally:
        await runner.cleanup()


async def ask(url: str, context: ssl.SSLContext) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return dict(await response.json())


async def asked(served: Tls, context: ssl.SSLContext) -> dict[str, Any]:
    async with serving(served) as url:
        return await ask(url, context)


@pytest.fixture(scope="module")
def root() -> OrgCa:
    return OrgCa("Example Root", kind="rsa", days=3650)


@pytest.fixture(scope="module")
def users(root: OrgCa) -> OrgCa:
    return OrgCa("Example Users", root)


@pytest.fixture(scope="module")
def servers(root: OrgCa) -> OrgCa:
    return OrgCa("Example Servers", root, kind="ed25519")


@pytest.fixture
def place(tmp_path: Path, servers: OrgCa) -> Place:
    return Place(tmp_path, servers, sent=[servers])


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("where", ["client sends it", "server has it"])
def test_a_user_of_an_intermediate_ca_is_known_whoever_has_that_ca(
    place: Place,
    root: OrgCa,
    users: OrgCa,
    where: str,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
):
    sends = where == "client sends it"
    served = place.tls([root] if sends else [users, root], [root.crl()], ["Example Users"])
    ann = users.issue("ann", groups=["ops"], sent=[users] if sends else ())
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        found = runner.run(asked(served, place.client(ann, root)))
    assert found == {"user": "ann", "groups": ["ops"], "methods": []}


async def test_an_intermediate_ca_that_nobody_has_is_no_way_to_the_root(
    place: Place, root: OrgCa, users: OrgCa
):
    served = place.tls([root], [root.crl()])
    async with serving(served) as url:
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(url, place.client(users.issue("ann"), root))


async def test_a_bundle_of_one_intermediate_ca_does_not_trust_its_siblings(
    place: Place, root: OrgCa, users: OrgCa, servers: OrgCa
):
    served = place.tls([users], [users.crl()])
    async with serving(served) as url:
        assert (await ask(url, place.client(users.issue("ann"), root)))["user"] == "ann"
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(url, place.client(servers.issue("eve", sent=[servers, root]), root))


async def test_users_of_several_cas_are_told_apart_by_issuer_and_number(
    place: Place, root: OrgCa, users: OrgCa
):
    partner = OrgCa("Partner", kind="rsa")
    ours, theirs = users.issue("ann", serial=77), partner.issue("bob", serial=77)
    served = place.tls([root, users, partner], [root.crl() + users.crl(77), partner.crl()])
    async with serving(served) as url:
        assert (await ask(url, place.client(theirs, root)))["user"] == "bob"
        refused = await ask(url, place.client(ours, root))
    assert refused["brief"] == "the certificate of ann was revoked"


async def test_a_new_list_cuts_off_a_connection_that_is_open(place: Place, root: OrgCa, users: OrgCa):
    ann = users.issue("ann", sent=[users])
    served = place.tls([root, users], [root.crl(), users.crl()])
    keeping = asyncio.create_task(served.keep_revocations())
    async with serving(served) as url, aiohttp.ClientSession() as session:
        context = place.client(ann, root)
        async with session.get(url, ssl=context) as response:
            assert response.status == 200
        (place.directory / "1.crl").write_bytes(users.crl(ann.serial, number=2))
        for _ in range(100):
            async with session.get(url, ssl=context) as response:
                if response.status == 401:
                    break
            await asyncio.sleep(0.05)
        assert response.status == 401
    keeping.cancel()


async def test_what_a_client_sends_is_refused_where_its_ca_has_no_list(
    place: Place, root: OrgCa, users: OrgCa
):
    context = place.client(users.issue("ann", sent=[users]), root)
    refused = await asked(place.tls([root], [root.crl()]), context)
    assert "no revocation list of its CA Example Users here" in refused["brief"]


async def test_an_intermediate_ca_that_a_client_sends_may_have_been_revoked(
    place: Place, root: OrgCa, users: OrgCa
):
    revoked = root.crl(users.certificate.serial_number)
    context = place.client(users.issue("ann", sent=[users]), root)
    refused = await asked(place.tls([root], [revoked], ["Example Users"]), context)
    assert refused["brief"] == "the certificate of CA Example Users, which issued that of ann, was revoked"


async def test_a_user_cannot_be_a_ca_by_sending_itself_along(place: Place, root: OrgCa, users: OrgCa):
    ann = users.issue("ann")
    forger = OrgCa("Forger", key=ann.key)
    forger.subject = ann.certificate.subject
    forged = forger.issue("root", sent=[Sent(ann.certificate), users])
    async with serving(place.tls([root, users], [root.crl(), users.crl()])) as url:
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(url, place.client(forged, root))


class Sent:
    """Something that is sent along as if it were a CA's."""

    def __init__(self, certificate: x509.Certificate) -> None:
        self.certificate = certificate


def test_a_service_does_not_start_with_a_ca_of_which_it_has_no_list(place: Place, root: OrgCa, users: OrgCa):
    with pytest.raises(HostFailure, match="no revocation list of CA Example Users$"):
        place.tls([root, users], [root.crl()])
    with pytest.raises(HostFailure, match=r"reading the CAs in .*bundle\.pem: no such file"):
        Tls(Pki(place.directory / "bundle.pem.none" / "bundle.pem", place.cert, place.key))


KEYMASTER = name(
    "keymaster.example.org",
    (NameOID.ORGANIZATION_NAME, "keymaster"),
    (NameOID.SERIAL_NUMBER, "hZ6VJ0zKpmP2h2vV5wHqf3g=="),
)
OIDS = [ExtendedKeyUsageOID.CLIENT_AUTH, PKINIT]
KERBEROS = x509.OtherName(
    x509.ObjectIdentifier("1.3.6.1.5.2.2"),
    # Realm EXAMPLE.ORG, principal ann, in the GeneralStrings that PKINIT wants.
    b"\x30\x21\xa0\x0d\x1b\x0bEXAMPLE.ORG\xa1\x10\x30\x0e\xa0\x03\x02\x01\x01\xa1\x07\x30\x05\x1b\x03ann",
)


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
@pytest.mark.parametrize("signed_by", ["rsa", "ed25519"])
async def test_what_keymaster_issues_is_taken_as_it_is(
    tmp_path: Path, root: OrgCa, servers: OrgCa, kind: str, signed_by: str
):
    keymaster = OrgCa(KEYMASTER, kind=signed_by, signs_lists=False)
    subject = name("ann.smith@example.org", (NameOID.ORGANIZATION_NAME, "Engineering"))
    ann = keymaster.issue(
        subject,
        groups=["dev ops", "ünïts"],
        methods=["Hypervisor.*"],
        usages=OIDS,
        names=[KERBEROS],
        kind=kind,
    )
    place = Place(tmp_path, servers, sent=[servers])
    served = place.tls([keymaster], without_crl=["keymaster.example.org"])
    assert await asked(served, place.client(ann, root)) == {
        "user": "ann.smith@example.org",
        "groups": ["dev ops", "ünïts"],
        "methods": ["Hypervisor.*"],
    }


@pytest.mark.parametrize("groups", [None, b"\x30\x00"])
async def test_a_user_of_no_group_is_a_user(place: Place, root: OrgCa, users: OrgCa, groups: bytes | None):
    served = place.tls([users], [users.crl()])
    found = await asked(served, place.client(users.issue("ann", groups=groups), root))
    assert found == {"user": "ann", "groups": [], "methods": []}


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        (0x0C, b"ops"),
        (0x13, b"ops"),
        (0x16, b"ops"),
        (0x1A, b"ops"),
        (0x1E, "ops".encode("utf-16-be")),
    ],
)
async def test_groups_may_be_written_in_any_kind_of_string(
    place: Place, root: OrgCa, users: OrgCa, tag: int, data: bytes
):
    value = bytes([0x30, len(data) + 2, tag, len(data)]) + data
    served = place.tls([users], [users.crl()])
    found = await asked(served, place.client(users.issue("ann", groups=value), root))
    assert found["groups"] == ["ops"]


async def test_a_keymaster_that_made_its_ca_anew_for_the_same_key_is_the_same(
    tmp_path: Path, root: OrgCa, servers: OrgCa
):
    before = OrgCa(KEYMASTER, days=1)
    after = OrgCa(KEYMASTER, key=before.key, days=3000)
    place = Place(tmp_path, servers, sent=[servers])
    served = place.tls([before, after], without_crl=["keymaster.example.org"])
    async with serving(served) as url:
        for ca in (before, after):
            assert (await ask(url, place.client(ca.issue("ann"), root)))["user"] == "ann"


OPENSSL = """
[ca]
default_ca = own
[own]
dir = {dir}
database = {dir}/index.txt
serial = {dir}/serial
crlnumber = {dir}/crlnumber
new_certs_dir = {dir}
certificate = {dir}/ca.pem
private_key = {dir}/ca.key
default_md = sha256
default_days = 1
default_crl_days = 1
policy = any
[any]
commonName = supplied
[client]
basicConstraints = CA:false
keyUsage = digitalSignature
extendedKeyUsage = clientAuth
1.3.6.1.4.1.9586.100.7.2 = ASN1:SEQUENCE:groups
[groups]
first = UTF8:ops
second = IA5:web
[req]
distinguished_name = name
[name]
"""


class Openssl:
    """A CA as `openssl ca` keeps it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.ca = directory / "ca.pem"
        (directory / "ca.cnf").write_text(OPENSSL.format(dir=directory))
        (directory / "index.txt").touch()
        for counter in ("serial", "crlnumber"):
            (directory / counter).write_text("1000\n")
        self.run(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/O=Example/CN=Own CA"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def run(self, *argv: str) -> None:
        command = ["openssl", argv[0], "-config", str(self.directory / "ca.cnf"), *argv[1:]]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True, timeout=60)

    def issue(self, user: str) -> tuple[Path, Path]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self.run("req", *curve, "-subj", f"/CN={user}", "-keyout", f"{user}.key", "-out", f"{user}.csr")
        self.run("ca", "-batch", "-extensions", "client", "-in", f"{user}.csr", "-out", f"{user}.pem")
        return self.directory / f"{user}.pem", self.directory / f"{user}.key"

    def list(self) -> Path:
        self.run("ca", "-gencrl", "-out", "list.pem")
        return self.directory / "list.pem"


async def test_a_ca_of_openssl_is_taken_with_its_list(tmp_path: Path, root: OrgCa, servers: OrgCa):
    own = Openssl(tmp_path / "own")
    ann, bob = own.issue("ann"), own.issue("bob")
    place = Place(tmp_path, servers, sent=[servers])
    served = Tls(Pki(own.ca, place.cert, place.key, (own.list(),)))
    trusted = tmp_path / "root.pem"
    trusted.write_bytes(root.pem)
    async with serving(served) as url:
        for cert, key in (ann, bob):
            found = await ask(url, tls.client_context(trusted, cert, key))
            assert (found["user"], found["groups"]) == (cert.stem, ["ops", "web"])
        own.run("ca", "-revoke", "ann.pem")
        own.list()
        served.revocations.look_again()
        refused = await ask(url, tls.client_context(trusted, *ann))
        assert refused["brief"] == "the certificate of ann was revoked"
        assert (await ask(url, tls.client_context(trusted, *bob)))["user"] == "bob"
