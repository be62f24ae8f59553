"""Who may talk to whom, and what a user sees when it does not work."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from atoll.api import client
from atoll.errors import Unauthenticated
from atoll.identity import certificates, validity
from atoll.identity.authority import Authority
from atoll.identity.claims import user_claims

Atoll = Callable[..., Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_there_is_exit_status_7(atoll: Atoll) -> None:
    outcome = atoll("vm", "list", "--node", f"127.0.0.1:{free_port()}")
    assert outcome.status == 7
    assert outcome.err.startswith("atoll: cannot connect to 127.0.0.1:")


def test_the_next_address_is_tried_when_one_does_not_answer(atoll: Atoll, cloud: Any) -> None:
    address = json.loads((cloud.directory / "client/context.json").read_text())["addresses"][0]
    assert atoll("vm", "list", "--node", f"127.0.0.1:{free_port()},{address}").status == 0


def test_an_address_that_does_not_answer_costs_its_time_once(
    atoll: Atoll, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 0.3)
    address = json.loads((cloud.directory / "client/context.json").read_text())["addresses"][0]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(0)
        nodes = f"127.0.0.1:{mute.getsockname()[1]},{address}"
        assert atoll("vm", "list", "--node", nodes).status == 0
        mute.accept()[0].close()
        for _ in range(3):
            assert atoll("vm", "list", "--node", nodes).status == 0
        with pytest.raises(BlockingIOError):
            mute.accept()


def test_what_was_noted_of_addresses_does_not_matter_when_it_is_wrong(atoll: Atoll, cloud: Any) -> None:
    address = json.loads((cloud.directory / "client/context.json").read_text())["addresses"][0]
    nodes = f"127.0.0.1:{free_port()},{address}"
    assert atoll("vm", "list", "--node", nodes).status == 0
    (noted,) = (cloud.directory.parent / "cache").rglob("addresses.json")
    assert address in noted.read_text()
    for content in ("rubbish", "[]", '{"a": "b"}', ""):
        noted.write_text(content)
        assert atoll("vm", "list", "--node", nodes).status == 0
    noted.unlink()
    noted.mkdir()
    assert atoll("vm", "list", "--node", nodes).status == 0


def test_one_address_leaves_no_note(atoll: Atoll, cloud: Any) -> None:
    assert atoll("vm", "list").status == 0
    assert not (cloud.directory.parent / "cache").exists()


def expire(cloud: Any, pki: Path) -> Path:
    """The administrator's certificate ended yesterday."""
    cert = cloud.directory / "client/user.pem"
    before = Authority.open(pki / "ca", now=lambda: datetime.now(UTC) - timedelta(days=8))
    public = certificates.public_key(certificates.from_pem(cert.read_bytes()))
    cert.write_bytes(before.certify(user_claims("admin"), public, timedelta(days=7)).cert_pem)
    return cert


def test_a_certificate_that_is_over_says_how_to_renew_it(atoll: Atoll, cloud: Any, pki: Path) -> None:
    cert = expire(cloud, pki)
    outcome = atoll("vm", "list")
    assert outcome.status == 5
    assert f"certificate {cert}: expired at" in outcome.err
    assert "use sudo there" in outcome.err
    other = cloud.directory / "other.pem"
    cert.rename(other)
    outcome = atoll("vm", "list", "--cert", str(other))
    assert outcome.status == 5
    assert f"atoll ca renew {other}" in outcome.err


@pytest.mark.parametrize("argv", [("vm", "list"), ("vm", "console", "web", "--watch")])
def test_a_command_renews_the_administrators_certificate_where_its_ca_is(
    atoll: Atoll, cloud: Any, pki: Path, argv: tuple[str, ...]
) -> None:
    cert = expire(cloud, pki)
    (cloud.directory / "pki").symlink_to(pki / "ca")
    atoll(*argv)
    held = validity.of_pem(cert.read_bytes())
    assert held.not_after > datetime.now(UTC) + timedelta(days=6)
    assert atoll("vm", "list").status == 0


def test_a_certificate_of_another_ca_is_exit_status_5(atoll: Atoll, tmp_path: Path) -> None:
    issued = Authority.create(tmp_path / "other", "Other CA").issue_user("mallory")
    (tmp_path / "m.pem").write_bytes(issued.cert_pem)
    (tmp_path / "m.key").write_bytes(issued.key_pem)
    outcome = atoll("vm", "list", "--cert", str(tmp_path / "m.pem"), "--key", str(tmp_path / "m.key"))
    assert outcome.status == 5
    assert "hint: " in outcome.err


def test_a_server_of_another_ca_is_not_talked_to(atoll: Atoll, cloud: Any, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "Other CA")
    outcome = atoll("vm", "list", "--ca", str(other.cert_path))
    assert outcome.status == 5


def test_a_certificate_without_its_key_says_so(atoll: Atoll, pki: Path) -> None:
    outcome = atoll("vm", "list", "--key", str(pki / "server.key"))
    assert outcome.status == 2
    assert "belong together" in outcome.err


def test_a_certificate_that_ends_soon_is_spoken_of_once(atoll: Atoll, cloud: Any, pki: Path) -> None:
    issued = Authority.open(pki / "ca", now=lambda: datetime.now(UTC) - timedelta(hours=22)).issue_user("ann")
    own = cloud.directory / "own.pem", cloud.directory / "own.key"
    own[0].write_bytes(issued.cert_pem)
    own[1].write_bytes(issued.key_pem)
    words = ("vm", "list", "--cert", str(own[0]), "--key", str(own[1]))
    assert atoll(*words, "-o", "json").err == ""
    outcome = atoll(*words)
    assert outcome.status == 0
    assert f"renew it with: atoll ca renew {own[0]}" in outcome.err
    assert atoll(*words).err == ""


def test_a_certificate_that_is_over_for_a_moment_is_the_nodes_to_judge(
    atoll: Atoll, cloud: Any, pki: Path
) -> None:
    """Within what clocks differ by, the node is asked; here it says the same."""
    issued = Authority.open(pki / "ca", now=lambda: datetime.now(UTC) - timedelta(minutes=61)).issue_user(
        "ann", lifetime=timedelta(hours=1)
    )
    own = cloud.directory / "own.pem", cloud.directory / "own.key"
    own[0].write_bytes(issued.cert_pem)
    own[1].write_bytes(issued.key_pem)
    outcome = atoll("vm", "list", "--cert", str(own[0]), "--key", str(own[1]))
    assert outcome.status == 5
    assert f"certificate {own[0]}: expired at" in outcome.err
    assert f"renew it with: atoll ca renew {own[0]}" in outcome.err


def test_a_renewal_that_was_broken_off_is_finished_by_the_next_command(
    atoll: Atoll, cloud: Any, pki: Path
) -> None:
    client_files = cloud.directory / "client"
    issued = Authority.open(pki / "ca").renew_with_new_key((client_files / "user.pem").read_bytes())
    (client_files / "user.pem").write_bytes(issued.cert_pem)
    (client_files / "user.key.next").write_bytes(issued.key_pem)
    assert atoll("vm", "list").status == 0
    assert (client_files / "user.key").read_bytes() == issued.key_pem
    assert not (client_files / "user.key.next").exists()


def test_a_node_that_does_not_know_limits_is_said_to_be_too_old(
    atoll: Atoll, cloud: Any, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the certificate in the handshake, as one of a kind that it does not know."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unauthenticated("127.0.0.1: TLS refused: sslv3 alert certificate unknown", hint="look at it")

    monkeypatch.setattr(client.Client, "call", refuse)
    assert "limit" not in atoll("vm", "list").err
    issued = Authority.open(pki / "ca").issue_user("ann", limit=["vm.list"])
    own = cloud.directory / "own.pem", cloud.directory / "own.key"
    own[0].write_bytes(issued.cert_pem)
    own[1].write_bytes(issued.key_pem)
    outcome = atoll("vm", "list", "--cert", str(own[0]), "--key", str(own[1]))
    assert outcome.status == 5
    assert "it has a limit, which older nodes do not know" in outcome.err
