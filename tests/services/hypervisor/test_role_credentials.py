"""VMs that come with a long-lived credential of their role, and an issuer on the real wire that asks to see it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import structs

from atoll.api import changes
from atoll.api import hypervisor as api
from atoll.api.changes import ChangeVm
from atoll.api.codec import encode
from atoll.api.hypervisor import AddAddress, CreateVm, Since
from atoll.errors import AtollError, Conflict, Denied, HostFailure, Invalid
from atoll.guestnet.metadata import tree
from atoll.hypervisor.credentials import NO_BROKER
from atoll.hypervisor.vms.credential_store import NAME
from atoll.hypervisor.vms.records import Records
from atoll.identity.authority import Authority
from atoll.identity.claims import user_claims
from atoll.identity.issuers import AuthorityIssuer, HttpsIssuer, HttpsService
from atoll.identity.roles import RoleCallers
from atoll.identity.ssh_authority import SshAuthority
from atoll.model.identity import Identity
from atoll.model.long_lived import LongLivedCredential
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM, VmSpec
from atoll.system import clock, files
from killing import killed_at_write
from role_credentials import a_credential, secret_lines

HOUR = timedelta(hours=1)
LAB = Subnet("lab", "10.8.0.0/24", "10.8.0.1")

ROLES = RoleCallers(users=("web", "db"))


class Keymaster:
    """An issuer of an organisation: gives whoever shows a certificate others of the same name."""

    def __init__(self, pki: Any) -> None:
        self.authority: Authority = pki.authority
        self._pki = pki
        self._ssh = SshAuthority(self.authority.directory)
        self._ssh.ensure()
        self.callers: list[int] = []
        """The serial numbers of the certificates that it was shown."""
        self.refuses: set[int] = set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Keymaster]:
        context = self._pki.server()
        context.verify_mode = ssl.CERT_REQUIRED
        app = web.Application()
        app.add_routes([web.post("/certgen/{role}", self._certgen)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _certgen(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        der = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        shown = x509.load_der_x509_certificate(der)
        self.callers.append(shown.serial_number)
        role = request.match_info["role"]
        if [name.value for name in shown.subject] != [role] or shown.serial_number in self.refuses:
            return web.Response(status=403)
        file = (await request.post())["pubkeyfile"]
        assert isinstance(file, web.FileField)
        public = file.file.read()
        if request.query["type"] == "ssh":
            line = self._ssh.sign(public.decode(), [role], role, now=clock.now(), lifetime=HOUR)
            return web.Response(text=line)
        made = self.authority.certify(user_claims(role), load_pem_public_key(public), HOUR)  # type: ignore[arg-type]
        return web.Response(body=made.cert_pem)


def serial(credential: LongLivedCredential) -> int:
    return x509.load_pem_x509_certificate(credential.certificate.encode()).serial_number


@pytest.fixture
async def keymaster(pki: Any) -> AsyncIterator[Keymaster]:
    async with Keymaster(pki).serving() as served:
        yield served


@pytest.fixture
async def node(bare_node: Any, keymaster: Keymaster, pki: Any) -> Any:
    """A node whose issuer is that one, and that may ask it for nothing by its own right: it is not called web."""
    cert, key = pki.user_files("node")
    bare_node.issuer = HttpsIssuer(HttpsService(keymaster.url, pki.authority.cert_path, cert, key), ROLES)
    await bare_node.furnish()
    await bare_node.restart()
    return bare_node


@pytest.fixture
def credential(keymaster: Keymaster) -> LongLivedCredential:
    return a_credential(keymaster.authority)


async def served(node: Any, vm: VM) -> dict[str, bytes]:
    """All that the guest can read on its metadata address, by path."""
    callers = node.on(f"br-{vm.subnet}")
    asking = callers.guest(vm.ip)
    assert asking is not None
    await callers.settle(asking)
    guest = callers.guest(vm.ip)
    assert guest is not None
    return {path: tree.respond(path, guest, clock.now()).body for path in tree.paths(guest)}


def certificate_in(found: dict[str, bytes]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(
        found["/latest/dynamic/instance-identity/Ed25519-X.509-certificate"]
    )


async def test_whoever_has_a_credential_of_the_role_gives_it_and_the_guest_gets_short_lived_ones(
    node, ann, keymaster, credential
):
    with pytest.raises(Denied, match="may not give a VM the role web") as refusal:
        await ann.create("web", role="web")
    assert "or a credential of the role" in refusal.value.hint

    vm = await ann.create("web", role="web", role_credential=credential)
    assert abs(vm.role_credential_expires_at - clock.now() - timedelta(days=30)) < timedelta(minutes=1)
    found = await served(node, vm)
    made = certificate_in(found)
    assert [name.value for name in made.subject] == ["web"]
    assert made.not_valid_after_utc < clock.now() + 2 * HOUR
    assert set(keymaster.callers) == {serial(credential)}
    shown = await ann.show("web")
    assert (shown.role_problem, shown.role_cloud) == ("", NO_BROKER)


async def test_another_agent_goes_on_with_the_credential_that_the_first_one_was_given(
    node, ann, keymaster, credential
):
    vm = await ann.create("web", role="web", role_credential=credential)
    first = certificate_in(await served(node, vm))
    shown = await ann.show("web")
    await node.restart()
    second = certificate_in(await served(node, vm))
    assert second.serial_number != first.serial_number
    assert set(keymaster.callers) == {serial(credential)}
    async with node.user("ann") as again:
        assert await again.show("web") == shown


async def test_a_vm_at_another_address_keeps_its_credential(node, ann, oper, keymaster, credential):
    await oper.call(api.NODE_ADD_SUBNET, body=LAB)
    await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("lab", (Address("10.8.0.5", mac_for("10.8.0.5")),)))
    vm = await ann.create("web", role="web", role_credential=credential, subnet="lan")
    await ann.halt("web")
    moved = await ann.call(changes.VM_CHANGE, {"vm": "web"}, body=ChangeVm(subnet="lab"))
    assert (moved.ip, moved.role_credential_expires_at) == ("10.8.0.5", vm.role_credential_expires_at)
    await node.restart()
    assert certificate_in(await served(node, moved))
    assert set(keymaster.callers) == {serial(credential)}
    assert not (node.directory / "state" / "vms" / vm.ip).exists()


async def test_each_vm_is_renewed_with_its_own(node, ann, keymaster, credential):
    other = a_credential(keymaster.authority, "db")
    web = await ann.create("web", role="web", role_credential=credential)
    db = await ann.create("db", role="db", role_credential=other)
    names = [next(iter(certificate_in(await served(node, vm)).subject)).value for vm in (web, db)]
    assert names == ["web", "db"]
    assert set(keymaster.callers) == {serial(credential), serial(other)}


async def test_a_refusal_of_the_issuer_is_told_and_what_is_still_good_is_served(
    node, ann, keymaster, credential, until, caplog
):
    vm = await ann.create("web", role="web", role_credential=credential)
    first = certificate_in(await served(node, vm))
    keymaster.refuses.add(serial(credential))
    node.now = lambda: clock.now() + 0.6 * HOUR
    await asyncio.gather(*node.credentials.look())

    told = await ann.show("web")
    assert told.state == "running"
    assert told.role_problem == (
        f"asking {keymaster.url} for a certificate of role web"
        " with the credential that the VM was given: it answered 403"
    )
    assert f"credentials of VM {vm.ip} for role web: {told.role_problem}" in caplog.text
    assert certificate_in(await served(node, vm)) == first

    await node.restart()
    await until(lambda: node.service.vms.show("web").role_problem)
    keymaster.refuses.clear()
    await node.restart()
    await until(lambda: not node.service.vms.show("web").role_problem)


async def test_a_credential_that_has_ended_is_told_and_never_replaced_by_the_nodes_own_right(
    node, keymaster, credential, pki
):
    cert, key = pki.user_files("web")  # the node could ask for this role itself
    node.issuer = HttpsIssuer(HttpsService(keymaster.url, pki.authority.cert_path, cert, key), ROLES)
    await node.restart()
    async with node.user("ann") as ann:
        vm = await ann.create("web", role="web", role_credential=credential)
        assert certificate_in(await served(node, vm))
        node.now = lambda: clock.now() + timedelta(days=31)
        await asyncio.gather(*node.credentials.look())
        told = await ann.show("web")
        ended = f"{vm.role_credential_expires_at:%Y-%m-%d %H:%M:%SZ}"
        assert told.role_problem == f"the credential that the VM was created with ended at {ended}"
        assert not any("certificate" in path for path in await served(node, vm))
    assert set(keymaster.callers) == {serial(credential)}


async def test_a_file_that_was_damaged_is_told_and_the_vm_runs_on(node, ann, until, credential):
    vm = await ann.create("web", role="web", role_credential=credential)
    path = node.records.directory(vm.ip) / NAME
    path.write_bytes(path.read_bytes()[:-1])
    await node.restart()
    await until(lambda: node.service.vms.show("web").role_problem)
    told = node.service.vms.show("web")
    assert told.role_problem.startswith(f"opening {path}: it was changed")
    assert told.state == "running"


async def test_nothing_of_the_key_is_found_anywhere(node, ann, oper, credential, caplog):
    caplog.set_level(logging.DEBUG)
    vm = await ann.create("web", role="web", role_credential=credential, user_data=b"#!")
    seen = [encode(vm), encode(await ann.list()), encode(await ann.show("web")), encode(await ann.node())]
    found = await served(node, vm)
    assert len(found) > 20
    seen += [path.encode() + body for path, body in found.items()]
    seen += [encode(line) async for line in ann.stream(api.EVENTS, query=Since(follow=False))]
    other = a_credential(node.pki.authority, "db")
    for bad in (
        structs.replace(credential, key=other.key),
        structs.replace(credential, certificate=other.certificate),
        other,
    ):
        with pytest.raises(Invalid, match="role_credential") as refusal:
            await ann.create("bad", role="web", role_credential=bad)
        seen.append(f"{refusal.value.brief}{refusal.value.hint}{refusal.value.details}".encode())
    await node.restart()
    await served(node, vm)
    state = node.directory / "state"
    kept = [path for path in state.rglob("*") if path.is_file()]
    assert {state / "audit.jsonl", state / "secrets.key", state / "vms" / vm.ip / NAME} <= set(kept)
    seen += [path.read_bytes() for path in kept] + [caplog.text.encode()]

    for line in (*secret_lines(credential), *secret_lines(other)):
        assert not any(line.encode() in text for text in seen), line
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in kept)
    assert [oct(path.stat().st_mode & 0o777) for path in kept if path.name in (NAME, "secrets.key")] == [
        "0o600",
        "0o600",
    ]


async def test_it_is_forgotten_with_its_vm(node, ann, credential):
    vm = await ann.create("web", role="web", role_credential=credential)
    assert (node.records.directory(vm.ip) / NAME).exists()
    await ann.destroy("web")
    assert node.traces() == set()
    assert not list(node.directory.rglob(NAME))


@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_create_that_is_killed_at_any_write_leaves_nothing_or_all(node, ann, credential, nth: int):
    with killed_at_write(nth):
        with contextlib.suppress(AtollError):
            await ann.create("web", role="web", role_credential=credential, user_data=b"x")
        await node.stop()
    await node.start()
    async with node.user("ann") as again:
        for vm in await again.list():
            assert vm.role_credential_expires_at is not None
            assert await node.records.credentials.read(vm) == credential
            await again.destroy(vm.ip)
    assert node.traces() == set()
    assert len(node.free()) == 4


async def test_a_create_that_is_given_up_while_its_files_are_written_leaves_nothing(
    node, credential, monkeypatch, until
):
    """What is being written is written before it is removed: it cannot come back afterwards."""
    for slow in (f"/{NAME}", "/user-data-"):
        reached, go_on, order = threading.Event(), threading.Event(), []
        write, bury = files.write_together, Records._bury

        def held(
            writes: Any, spares: Any = None, slow=slow, reached=reached, go_on=go_on, order=order, write=write
        ) -> list[HostFailure | None]:
            if any(slow in str(one.path) for one in writes):
                reached.set()
                go_on.wait(5)
                order.append("written")
            return write(writes, spares)

        def buried(self: Records, ip: str, order=order, bury=bury) -> Path | None:
            order.append("discarded")
            return bury(self, ip)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_together", held)
            patch.setattr(Records, "_bury", buried)
            spec = VmSpec("web", "tiny", driver="sim", memory_mib=64, role="web")
            body = CreateVm(spec, b"x", role_credential=credential)
            lines = node.service.creator.create(body, Identity("ann"))
            creating = asyncio.ensure_future(_all(lines))
            await until(reached.is_set)
            creating.cancel()
            await asyncio.sleep(0.02)
            go_on.set()
            await asyncio.gather(creating, return_exceptions=True)
        assert order == ["written", "discarded"]
        assert node.traces() == set()


async def _all(lines: AsyncIterator[Any]) -> list[Any]:
    return [line async for line in lines]


async def test_a_node_whose_key_is_not_safe_refuses_and_leaves_nothing(node, ann, credential):
    await ann.create("web", role="web", role_credential=credential)
    key = node.directory / "state" / "secrets.key"
    key.chmod(0o644)
    before = node.traces()
    with pytest.raises(HostFailure, match="is not for root alone"):
        await ann.create("web2", role="web", role_credential=credential)
    assert node.traces() == before


async def test_the_same_request_again_gives_the_same_vm_also_when_the_credential_is_no_good_any_more(
    node, ann, keymaster, credential, monkeypatch
):
    vm = await ann.create("web", role="web", role_credential=credential, request_id="r-1")
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: vm.role_credential_expires_at + HOUR)
        body = CreateVm(
            VmSpec("web", "tiny", driver="sim", memory_mib=64, role="web"),
            request_id="r-1",
            role_credential=credential,
        )
        lines = [line async for line in node.service.creator.create(body, Identity("ann"))]
    assert [line.result.ip for line in lines] == [vm.ip]


async def test_a_node_that_has_roles_signed_by_its_own_ca_takes_no_credential(bare_node, credential):
    bare_node.issuer = AuthorityIssuer(Path("/nowhere"))
    await bare_node.furnish()
    await bare_node.restart()
    for user in ("ann", "oper"):
        async with bare_node.user(user) as creator:
            with pytest.raises(
                Conflict, match="the issuer of node1 is its own CA, which takes no credential"
            ):
                await creator.create("web", role="web", role_credential=credential)
    assert bare_node.traces() == set()
