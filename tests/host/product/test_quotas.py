"""Quotas and certificates with a limit, by the command, on a cloud that runs real VMs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.host.conftest import Cli


@pytest.fixture
def ann(cloud: Cli) -> Cli:
    return cloud.issue("quota-ann")


def test_a_quota_is_set_seen_met_raised_and_taken_away(cloud: Cli, ann: Cli) -> None:
    cloud("quota", "set", "--user", "quota-ann", "--vms", "1", "--memory", "256MiB")
    try:
        ann.create("q1", "--wait-for", "started")
        ann("vm", "stop", "--force", "q1")
        assert "reserved: memory" in ann("vm", "show", "q1", "-c", "holds").stdout
        refusal = ann.refused("vm", "create", "--name", "q2", "--image", "appliance")
        assert refusal.status == 6
        assert "over the quota of user quota-ann: vms 1 of 1 used and 1 more asked for" in refusal.brief
        assert "atoll quota set --user quota-ann --vms 2" in refusal.hint
        assert refusal.hint.count("admin") == 1
        (use,) = ann.json("quota", "show")
        assert (use["limits"]["vms"], use["used"]["vms"], use["free"]["vms"]) == (1, 1, 0)
        assert ann.refused("quota", "set", "--user", "quota-ann", "--vms", "9").status == 5
        assert ann.refused("quota", "list").status == 5
        assert "q2" not in cloud.names()
    finally:
        cloud("vm", "destroy", "--yes", "q1", check=False)
        cloud("quota", "delete", "--user", "quota-ann")
    assert "quota-ann" not in cloud("quota", "list", "-c", "name", "--no-header").stdout.split()


def test_over_commit_is_shown_and_named_by_the_refusal_for_cpus(cloud: Cli) -> None:
    cores = cloud.json("node", "show")["total"]["milli_cpus"] // 1000
    asked = ("vm", "create", "--name", "wide", "--image", "appliance", "--cpus", str(cores + 1))
    refusal = cloud.refused(*asked)
    assert (refusal.status, "cpus" in refusal.brief) == (6, True)
    found = re.search(r"atoll node change --cpu-overcommit ([0-9.]+)$", refusal.hint)
    assert found, refusal.hint
    try:
        enough = json.loads(cloud("node", "change", "--cpu-overcommit", found[1], "-o", "json").stdout)
        assert enough["free"]["milli_cpus"] >= 1000 * (cores + 1)
        node = json.loads(cloud("node", "change", "--cpu-overcommit", "4", "-o", "json").stdout)
        assert node["total"]["milli_cpus"] == 4000 * cores
        assert "cpus 4 times" in cloud("node", "show", "-c", "overcommit").stdout
    finally:
        cloud("node", "change", "--cpu-overcommit", "none")
    assert cloud.json("node", "show")["total"]["milli_cpus"] == 1000 * cores


def test_a_certificate_with_a_limit_looks_and_does_nothing_else(cloud: Cli, ann: Cli) -> None:
    ann.create("limited", "--wait-for", "started")
    try:
        watcher = cloud.issue("quota-ann", "--limit", "vm.list vm.show")
        assert "limited" in watcher.names()
        assert watcher.show("limited")["owner_users"] == ["quota-ann"]
        for words in (
            ("vm", "stop", "limited"),
            ("vm", "log", "limited"),
            ("vm", "console", "--watch", "limited"),
            ("vm", "create", "--name", "x", "--image", "appliance"),
            ("node", "show"),
            ("event", "list"),
        ):
            refusal = watcher.refused(*words)
            assert (refusal.status, "is limited to vm.list, vm.show" in refusal.brief) == (5, True), words
            assert "--limit 'vm.list vm.show" in refusal.hint
    finally:
        cloud.destroy("limited")
