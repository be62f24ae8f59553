"""Certificates for `atoll vm ssh`: for owners, for one VM that runs, and what guests get for their servers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from atoll.api.hypervisor import VM_STOP, StopVm
from atoll.api.observing import AUDIT, AuditQuery
from atoll.api.route import Done
from atoll.api.ssh import VM_SSH, AskSsh
from atoll.errors import Conflict, Denied, HostFailure, Invalid, Malformed, TooMany
from atoll.identity.ssh_authority import FOR_EVER, public_key
from atoll.identity.ssh_issuer import AuthoritySshIssuer
from atoll.system import clock, steps


def a_key() -> str:
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def read(certificate: str, ca: str) -> SSHCertificate:
    found = load_ssh_public_identity(certificate.encode())
    assert isinstance(found, SSHCertificate)
    found.verify_cert_signature()
    assert found.signature_key() == public_key(ca)
    return found


@pytest.fixture
async def signing(node, pki):
    """A node with a CA for SSH."""
    node.ssh_issuer = AuthoritySshIssuer(pki.authority.directory)
    await node.restart()
    return node


async def test_an_owner_gets_minutes_in_one_vm_and_the_audit_log_has_it(ann, oper, signing):
    vm, key = await ann.create("web"), a_key()
    access = await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(key))

    made = read(access.certificate, signing.ssh.user_ca)
    assert made.type is SSHCertificateType.USER
    assert (made.valid_principals, made.key_id) == ([vm.instance_id.encode()], b"ann to web")
    assert made.public_key() == public_key(key)
    assert timedelta(minutes=4) < access.expires_at - clock.now() <= timedelta(minutes=5)
    assert (access.host, access.host_ca != signing.ssh.user_ca) == (vm.instance_id, True)

    lines = [line async for line in oper.stream(AUDIT, query=AuditQuery(method="vm.ssh"))]
    (entry,) = [line for line in lines if not isinstance(line, Done)]
    assert (entry.user, entry.name, entry.result) == ("ann", "web", "ok")
    assert f"certificate {made.serial} until" in entry.detail


async def test_it_is_for_owners_of_vms_that_run_with_keys_that_are_keys(ann, bob, signing):
    await ann.create("web")
    with pytest.raises(Denied):
        await bob.call(VM_SSH, {"vm": "web"}, body=AskSsh(a_key()))
    kind, blob = a_key().split()
    with pytest.raises(Malformed, match="SSH public key"):
        await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(f"{kind} {blob[:60]}"))
    with pytest.raises(Invalid):
        AskSsh("ssh-ed25519 nonsense")
    await ann.call(VM_STOP, {"vm": "web"}, body=StopVm(0))
    with pytest.raises(Conflict, match="vm ssh: VM web is stopped"):
        await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(a_key()))


async def test_where_nobody_could_log_in_it_says_so_and_what_there_is_instead(ann, node, signing):
    await ann.create("bare", image="plain")
    with pytest.raises(Conflict, match="no SSH server that trusts this cloud") as caught:
        await ann.call(VM_SSH, {"vm": "bare"}, body=AskSsh(a_key()))
    assert caught.value.hint == "use: atoll vm shell bare"
    node.ssh_issuer = None
    await node.restart()
    await ann.create("web")
    with pytest.raises(Conflict, match="no CA that signs SSH certificates"):
        await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(a_key()))


async def test_a_guest_gets_one_certificate_for_its_server_and_another_key_waits(ann, signing):
    vm, key = await ann.create("web"), a_key()
    certificate = await signing.ssh.certify(vm, key)
    access = await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(a_key()))

    made = read(certificate, access.host_ca)
    assert made.type is SSHCertificateType.HOST
    assert (made.valid_principals, made.valid_before) == ([access.host.encode()], FOR_EVER)
    assert await signing.ssh.certify(vm, f"{key} root@web") == certificate
    with pytest.raises(TooMany):
        await signing.ssh.certify(vm, a_key())
    with pytest.raises(Malformed):
        await signing.ssh.certify(vm, "no key")


async def test_a_failure_gives_nobody_a_certificate_and_the_next_try_one(ann, signing, monkeypatch):
    vm, key = await ann.create("web"), a_key()
    steps.arm("ssh.admitted:1:ERROR")
    with pytest.raises(HostFailure):
        await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(key))
    await ann.call(VM_SSH, {"vm": "web"}, body=AskSsh(key))

    monkeypatch.setattr("atoll.hypervisor.ssh.OTHER_KEY_S", 0)
    steps.arm("ssh.certified:1:ERROR")
    with pytest.raises(HostFailure):
        await signing.ssh.certify(vm, key)
    assert await signing.ssh.certify(vm, key)


async def test_a_signer_gives_nobody_more_than_an_hour(pki):
    issuer = AuthoritySshIssuer(pki.authority.directory, timedelta(hours=2))
    with pytest.raises(HostFailure):
        await issuer.login("c371c012", "ann to web", a_key())
