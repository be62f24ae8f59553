"""Who may talk to whom, and what a user sees when it does not work."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.identity.authority import Authority

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
