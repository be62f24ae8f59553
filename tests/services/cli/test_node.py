"""The other nouns on the real wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Atoll = Callable[..., Any]


def test_a_subnet_and_addresses_can_be_added(atoll: Atoll, cloud: Any) -> None:
    pool = ("--pool", "10.2.0.10-10.2.0.12")
    outcome = atoll("subnet", "add", "blue", "10.2.0.0/24", "--dns", "10.2.0.1", *pool)
    assert (outcome.status, outcome.out) == (0, "")
    outcome = atoll("subnet", "change", "blue", "--add", "10.2.0.9", "52:54:00:00:00:09", "-o", "json")
    pool = outcome.json
    assert pool["subnet"]["gateway"] == "10.2.0.1"
    assert [(address["ip"], address["mac"]) for address in pool["free"]] == [
        ("10.2.0.10", "52:54:0a:02:00:0a"),
        ("10.2.0.11", "52:54:0a:02:00:0b"),
        ("10.2.0.12", "52:54:0a:02:00:0c"),
        ("10.2.0.9", "52:54:00:00:00:09"),
    ]


def test_a_subnet_that_gets_no_pool_is_not_left_behind_and_one_that_was_there_stays(
    atoll: Atoll, cloud: Any
) -> None:
    outside = ("--pool", "10.9.9.9")
    assert atoll("subnet", "add", "blue", "10.2.0.0/24", *outside).status == 2
    assert cloud.node.pools == []
    assert atoll("subnet", "add", "blue", "10.2.0.0/24", "--no-pool").status == 0
    assert atoll("subnet", "add", "blue", "10.2.0.0/24", *outside).status == 2
    assert [pool.subnet.id for pool in cloud.node.pools] == ["blue"]


def test_a_subnet_is_listed_shown_and_deleted_only_when_it_is_meant(atoll: Atoll, cloud: Any) -> None:
    atoll("subnet", "add", "blue", "10.2.0.0/24", "--pool", "10.2.0.5-10.2.0.7")
    assert atoll("subnet", "list", "-o", "name").out == "blue\n"
    assert "10.2.0.5-10.2.0.7" in atoll("subnet", "show", "blue").out
    assert atoll("subnet", "show", "red").status == 3
    assert atoll("subnet", "delete", "blue").status == 2
    assert atoll("subnet", "delete", "--yes", "blue", "red").status == 0
    assert cloud.node.pools == []


def test_a_bad_subnet_is_refused_before_it_is_sent(atoll: Atoll, cloud: Any) -> None:
    outcome = atoll("subnet", "add", "blue", "10.2.0.1/24")
    assert outcome.status == 2
    assert "10.2.0.0/24" in outcome.err
    assert cloud.node.pools == []


def test_the_node_is_shown_with_its_pools_and_drivers(atoll: Atoll) -> None:
    atoll("subnet", "add", "blue", "10.2.0.0/24")
    text = atoll("node", "show").out
    assert " 4 GiB of 4 GiB free\n" in text
    assert "blue    10.2.0.0/24  10.2.0.1" in text
    assert "qemu    tcg" in text


def test_images_are_listed(atoll: Atoll) -> None:
    assert atoll("image", "list", "-o", "name").out == "appliance\n"
    assert "appliance  qemu" in atoll("image", "list").out


def test_events_are_json_lines_and_follow_goes_on(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web")
    cloud.node.make("db")
    lines = atoll("event", "stream", "--follow", "-o", "json").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["state", "changed"]


def test_the_full_state_is_one_row_per_vm(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web")
    cloud.node.make("db")
    rows = atoll("event", "stream", "-c", "kind,name,state", "--no-header").out.split("\n")
    assert [row.split() for row in rows[:-1]] == [["state", "web", "running"], ["state", "db", "running"]]
