"""A guest calls its own Hypervisor by the link-local address, without knowing where it runs."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.host.conftest import Cli

ADDRESS = "169.254.169.254"
IDENTITY = "/latest/dynamic/instance-identity"
ROLE = "builder"

# The guest carries our bytes to the link-local address, so that it is the guest who calls there.
RELAYS = f"""#!/bin/sh
nc -ll -p 9080 -e nc {ADDRESS} 80 &
nc -ll -p 9076 -e nc {ADDRESS} 6976 &
"""


@dataclass(frozen=True)
class Guest:
    """A VM from inside: what it reaches at the link-local address."""

    ip: str
    files: Path

    def read(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Nothing said of headers: with a token."""
        if headers is None:
            _, token = self.read("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
            headers = {"X-aws-ec2-metadata-token": token.decode()}
        connection = http.client.HTTPConnection(self.ip, 9080, timeout=30)
        return _exchange(connection, method, path, b"", headers)

    def call(
        self, method: str, path: str, body: bytes = b"", *, anonymous: bool = False
    ) -> tuple[int, bytes]:
        """One request to the control port with the certificate of the guest's role."""
        context = ssl.create_default_context(cafile=self._file("X.509-ca-certificate"))
        if not anonymous:
            context.load_cert_chain(self._file("X.509-certificate"), self._file("X.509-key"))
        connection = http.client.HTTPConnection(ADDRESS, 6976)
        plain = socket.create_connection((self.ip, 9076), timeout=60)
        connection.sock = context.wrap_socket(plain, server_hostname=ADDRESS)
        return _exchange(connection, method, path, body, {})

    def _file(self, name: str) -> Path:
        path = self.files / name
        if not path.exists():
            status, content = self.read(f"{IDENTITY}/{name}")
            assert status == 200, name
            path.write_bytes(content)
        return path


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def guest(cloud: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A running VM with a role."""
    files = tmp_path_factory.mktemp("guest")
    (files / "script").write_text(RELAYS)
    vm = cloud.create("parent", "--role", ROLE, "--user-data", str(files / "script"))
    relayed = Guest(vm["ip"], files)
    wait_for_relay(vm["ip"])
    yield relayed
    cloud.destroy("parent")


def wait_for_relay(ip: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((ip, 9076), timeout=2).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_guest_creates_a_sibling_with_the_certificate_of_its_role_where_the_node_says_so(
    cloud: Cli, guest: Guest
) -> None:
    request = {"spec": {"name": "sibling", "image": "appliance"}, "wait": {"wait_for": "started"}}
    status, refusal = guest.call("POST", "/v1/vms", json.dumps(request).encode())
    assert (status, b"may not create a VM here" in refusal) == (403, True)
    settings = cloud.directory / "settings.toml"
    settings.write_text(f'[role_callers]\nmay_create = ["{ROLE}"]\n')
    cloud("up")
    try:
        status, lines = guest.call("POST", "/v1/vms", json.dumps(request).encode())
        assert status == 200, lines
        made: dict[str, Any] = cloud.show("sibling")
        assert (made["state"], made["owner_users"]) == ("running", [f"{ROLE}@role"])
        assert guest.call("DELETE", "/v1/vms/sibling")[0] == 204
        assert "sibling" not in cloud.names()
    finally:
        settings.unlink()
        cloud("up")
        cloud.destroy("sibling")


def test_a_guest_without_a_certificate_is_told_that_it_needs_one(guest: Guest) -> None:
    status, body = guest.call("GET", "/v1/node", anonymous=True)
    assert (status, json.loads(body)["code"]) == (401, "unauthenticated")
    assert guest.call("GET", "/healthz", anonymous=True)[0] == 200


def test_a_role_opens_nothing_that_is_not_its_own(cloud: Cli, guest: Guest, booted: dict[str, Any]) -> None:
    assert guest.call("DELETE", f"/v1/vms/{booted['ip']}")[0] == 403
    spec = {"spec": {"name": "climber", "image": "appliance", "role": "admin"}}
    status, body = guest.call("POST", "/v1/vms", json.dumps(spec).encode())
    assert (status, json.loads(body)["code"]) == (403, "denied")


def test_only_operators_and_members_of_its_group_give_a_role(cloud: Cli) -> None:
    outsider = cloud.issue("outsider", "--group", "others")
    refusal = outsider.refused("vm", "create", "--name", "x", "--image", "appliance", "--role", ROLE)
    assert refusal.brief == f"outsider may not give a VM the role {ROLE}"
    member = cloud.issue("member", "--group", ROLE)
    try:
        vm = member.create("members", "--role", ROLE, "--wait-for", "started")
        assert (vm["role"], vm["owner_users"]) == (ROLE, ["member"])
    finally:
        cloud.destroy("members")


def test_the_agent_gives_tokens_and_its_guest_reads_with_them_and_not_without(
    cloud: Cli, guest: Guest
) -> None:
    assert guest.read("/latest/meta-data/local-ipv4", headers={})[0] == 401
    assert guest.read(f"{IDENTITY}/X.509-key", headers={})[0] == 401
    status, token = guest.read("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    assert status == 200
    asked = {"X-aws-ec2-metadata-token": token.decode()}
    assert guest.read("/latest/meta-data/local-ipv4", headers=asked) == (200, guest.ip.encode())


def test_the_credentials_of_a_role_are_in_no_file_of_the_node(cloud: Cli, guest: Guest) -> None:
    _, key = guest.read(f"{IDENTITY}/X.509-key")
    secret = key.splitlines()[10]
    files = [
        path for path in (cloud.directory).rglob("*") if path.is_file() and path.stat().st_size < 1 << 24
    ]
    assert len(files) > 20
    assert not [path for path in files if secret in path.read_bytes()]
