"""`atoll vm create`, `change` and `show --as-request` on the real wire: what is sent, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.api.changes import ChangeVm

Atoll = Callable[..., Any]


def test_a_create_is_acknowledged_once_it_is_printed(atoll: Atoll, cloud: Any) -> None:
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance", "-o", "json")
    assert cloud.node.created[0].acknowledge
    assert cloud.node.acknowledged == [outcome.json["ip"]]


def test_a_vm_that_is_slow_stays_and_its_creator_knows(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("other")
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance", "--wait-for", "port:9")
    assert outcome.status == 8
    assert cloud.node.acknowledged == ["10.213.0.5"]


def test_a_create_that_broke_off_is_not_acknowledged(atoll: Atoll, cloud: Any) -> None:
    cloud.node.mute_after = "started"
    assert atoll("vm", "create", "--name", "web", "--image", "appliance").status == 7
    assert cloud.node.acknowledged == []


def test_a_refused_create_is_not_acknowledged(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web")
    assert atoll("vm", "create", "--name", "web", "--image", "appliance").status == 4
    assert cloud.node.acknowledged == []


def test_a_change_sends_what_was_typed_and_says_what_waits(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web", pending=("memory_mib",), memory_mib=256)
    outcome = atoll("vm", "change", "web", "--memory", "256MiB", "--tag", "a=1", "-o", "json")
    assert outcome.status == 0
    assert cloud.node.changed == [ChangeVm(memory_mib=256, tags={"a": "1"})]
    assert outcome.json["memory_mib"] == 256
    assert (
        outcome.err
        == "web: at its next start: memory\nweb: runs on as it was until then: atoll vm reboot web\n"
    )


def test_what_is_shown_as_a_request_makes_the_same_vm_again(atoll: Atoll, cloud: Any, tmp_path: Path) -> None:
    cloud.node.make("web", memory_mib=256, tags={"a": "b"}, user_data_sha256="x", protected=True)
    cloud.node.user_data["web"] = b"#!/bin/sh\n\xff"
    cloud.node.user_data["10.213.0.5"] = b"#!/bin/sh\n\xff"
    shown = atoll("vm", "show", "web", "--as-request")
    assert json.loads(shown.out)["spec"]["name"] == "web"
    (tmp_path / "request").write_text(shown.out)
    assert atoll("vm", "create", "--request", str(tmp_path / "request"), "--name", "again").status == 0
    sent = cloud.node.created[0]
    assert (sent.spec.name, sent.spec.memory_mib, sent.spec.tags) == ("again", 256, {"a": "b"})
    assert (sent.spec.protected, sent.user_data) == (True, b"#!/bin/sh\n\xff")
