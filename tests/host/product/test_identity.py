"""Who may do what to a running cloud: nobody without a good certificate, and nobody to what is not theirs."""

from __future__ import annotations

import json
import re
import ssl
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.identity import store, validity
from atoll.identity.authority import Authority

if TYPE_CHECKING:
    from tests.host.conftest import Cli


@pytest.fixture(scope="module")
def bob(cloud: Cli) -> Cli:
    """A plain user of the shared cloud."""
    return cloud.issue("bob")


@pytest.fixture(scope="module")
def vm_of_bob(bob: Cli) -> Iterator[dict[str, Any]]:
    yield bob.create("of-bob", "--wait-for", "started")
    bob.destroy("of-bob")


def test_without_a_certificate_there_is_nothing_but_health(cloud: Cli) -> None:
    assert cloud.request("GET", "/healthz", anonymous=True).status == 200
    for verb, path in (
        ("GET", "/v1/vms"),
        ("GET", "/v1/node"),
        ("POST", "/v1/vms"),
        ("GET", "/openapi.json"),
    ):
        reply = cloud.request(verb, path, anonymous=True)
        assert (reply.status, reply.json()["code"]) == (401, "unauthenticated")
        assert "none was presented" in reply.json()["brief"]


def test_a_certificate_of_another_ca_is_refused(cloud: Cli, tmp_path: Path) -> None:
    cloud("ca", "init", "--name", "Another CA", "--ca-dir", str(tmp_path / "ca"))
    cloud("ca", "issue", "user", "admin", "--ca-dir", str(tmp_path / "ca"), "--out", str(tmp_path))
    stranger = cloud.with_certificate(tmp_path / "admin.pem", tmp_path / "admin.key")
    refusal = stranger.refused("vm", "list")
    assert refusal.status == 5
    assert "certificate" in refusal.brief or "TLS refused" in refusal.brief
    assert "CA" in refusal.hint
    with pytest.raises((ssl.SSLError, ConnectionError)):
        stranger.request("GET", "/v1/vms")


def test_an_expired_certificate_is_refused(cloud: Cli) -> None:
    late = cloud.issue("late", "--lifetime", "2s")
    assert late.request("GET", "/v1/node").status == 200
    time.sleep(2.5)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        late.request("GET", "/v1/node")
    refusal = late.refused("vm", "list")
    assert refusal.status == 5
    assert "expired" in refusal.brief
    assert refusal.hint


def test_a_revoked_certificate_is_refused(cloud: Cli) -> None:
    eve = cloud.issue("eve")
    assert eve("vm", "list").returncode == 0
    cloud("ca", "revoke", "--subject", "eve")
    time.sleep(1.5)  # a server looks at the list once a second
    refusal = eve.refused("vm", "list")
    assert (refusal.status, "eve was revoked" in refusal.brief) == (5, True)
    assert refusal.hint
    reply = eve.request("GET", "/v1/vms")
    assert (reply.status, reply.json()["code"]) == (401, "unauthenticated")


def test_a_certificate_for_servers_cannot_call(cloud: Cli) -> None:
    server = cloud.directory / "server"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        cloud.with_certificate(server / "server.pem", server / "server.key").request("GET", "/v1/vms")


def test_a_vm_belongs_to_whoever_made_it(bob: Cli, vm_of_bob: dict[str, Any]) -> None:
    assert vm_of_bob["owner_users"] == ["bob"]
    assert bob.json("vm", "stop", "of-bob", "--force")["state"] == "stopped"
    assert bob.json("vm", "start", "of-bob", "--wait-for", "started")["state"] == "running"


def test_the_vm_of_another_user_is_seen(cloud: Cli, bob: Cli, booted: dict[str, Any]) -> None:
    assert "booted" in bob.names()
    assert bob.show("booted")["owner_users"] == ["admin"]


@pytest.mark.parametrize(
    "words",
    [
        ("vm", "stop", "booted"),
        ("vm", "stop", "--force", "booted"),
        ("vm", "start", "booted"),
        ("vm", "reboot", "booted"),
        ("vm", "destroy", "--yes", "booted"),
        ("vm", "console", "booted"),
        ("vm", "log", "booted"),
        ("vm", "user-data", "booted"),
    ],
    ids=" ".join,
)
def test_the_vm_of_another_user_is_never_touched(
    cloud: Cli, bob: Cli, booted: dict[str, Any], words: tuple[str, ...]
) -> None:
    before, machine = cloud.show("booted"), cloud.qemu(booted["ip"])
    refusal = bob.refused(*words)
    assert refusal.status == 5
    assert "bob may not call" in refusal.brief
    assert "booted" in refusal.brief
    assert refusal.hint
    assert (cloud.show("booted"), cloud.qemu(booted["ip"])) == (before, machine)


def test_a_request_id_of_another_user_gives_nothing_away(cloud: Cli, bob: Cli) -> None:
    first = cloud.create("mine", "--request-id", "secret-1", "--wait-for", "started")
    try:
        spec = ("vm", "create", "--name", "his", "--image", "appliance", "--request-id", "secret-1")
        made = bob(*spec, "--wait-for", "started", "-o", "json", check=False)
        assert made.returncode == 5 or json.loads(made.stdout)["ip"] != first["ip"]
    finally:
        cloud.destroy("mine", "his")


def test_the_node_is_for_operators(cloud: Cli, bob: Cli) -> None:
    before = bob.json("node", "show")
    for words in (
        ("subnet", "add", "sneaky", "10.99.0.0/24"),
        ("subnet", "change", "default", "--add", "10.99.0.9"),
    ):
        refusal = bob.refused(*words)
        assert (refusal.status, "for operators" in refusal.brief) == (5, True)
    assert bob.json("node", "show")["pools"] == before["pools"]


def test_a_certificate_can_grant_what_an_operator_may(cloud: Cli, booted: dict[str, Any]) -> None:
    auditor = cloud.issue("auditor", "--grant", "vm.log")
    assert "as booted" in auditor("vm", "log", "booted").stdout
    assert auditor.refused("vm", "stop", "booted").status == 5


def test_keys_are_for_their_owner_alone(cloud: Cli, bob: Cli) -> None:
    keys = [*cloud.directory.rglob("*.key"), Path(bob.environment["ATOLL_KEY"])]
    assert len(keys) >= 4
    assert {key.name for key in keys} >= {"ca.key", "server.key", "user.key", "bob.key"}
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_no_secret_is_on_a_command_line_or_in_the_log(cloud: Cli, booted: dict[str, Any]) -> None:
    command_line = Path(f"/proc/{cloud.qemu(booted['ip'])}/cmdline").read_bytes()
    log = (cloud.directory / "agent.log").read_bytes()
    for text in (command_line, log):
        assert b"the script ran" not in text
        assert b"PRIVATE KEY" not in text


def test_a_node_renews_its_certificate_past_half_of_its_life_while_it_serves(cloud: Cli) -> None:
    files = store.server_credential(cloud.directory / "server")
    held = files.cert.read_bytes()
    long_ago = datetime.now(UTC) - timedelta(days=20)
    before = Authority.open(cloud.directory / "pki", now=lambda: long_ago).renew(held)
    files.cert.write_bytes(before.cert_pem)
    deadline = time.monotonic() + 30  # it looks every ten seconds, and a signer takes one
    while files.cert.read_bytes() == before.cert_pem:
        assert cloud.request("GET", "/v1/node").status == 200
        assert time.monotonic() < deadline, (cloud.directory / "agent.log").read_text()[-2000:]
        time.sleep(0.2)
    end = validity.of_pem(files.cert.read_bytes()).not_after
    assert end > datetime.now(UTC) + timedelta(days=29)
    while shown_end(cloud) != end.timestamp():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert f"renewed certificate {files.cert} until" in (cloud.directory / "agent.log").read_text()


def shown_end(cloud: Cli) -> float:
    """When the certificate that the node serves with ends, as its metrics tell."""
    page = cloud.request("GET", "/metrics").body.decode()
    (line,) = re.findall(r"^atoll_certificate_end_timestamp_seconds (\S+)$", page, re.MULTILINE)
    return float(line)
