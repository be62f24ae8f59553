"""Looking at a cloud and its host: `status` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.host.conftest import Cli


def test_status_tells_what_is_up_and_what_runs(cloud: Cli, booted: dict[str, Any]) -> None:
    status = cloud.json("status")
    assert (status["agent"], status["address"]) == ("up", cloud.address)
    assert status["namespace"] == cloud.namespace
    assert status["vms"]["running"] == len(
        [vm for vm in cloud.json("vm", "list") if vm["state"] == "running"]
    )
    free = {each["ip"] for pool in cloud.json("node", "show")["pools"] for each in pool["free"]}
    assert status["free"]["addresses"] == len(free)
    assert booted["ip"] not in free


def test_status_of_no_cloud_is_not_found(empty_cloud: Cli) -> None:
    refusal = empty_cloud.refused("status")
    assert refusal.status in (3, 7)
    assert "atoll up" in refusal.hint


def test_doctor_finds_this_host_fit_and_says_how_to_mend_the_rest(cloud: Cli) -> None:
    findings = {finding["check"]: finding for finding in cloud.json("doctor")}
    assert findings.keys() >= {
        "root",
        "tools",
        "accelerator",
        "links",
        "firewall",
        "cgroups",
        "space",
        "memory",
    }
    assert {finding["result"] for finding in findings.values()} <= {"ok", "warning"}
    for finding in findings.values():
        assert finding["found"]
        assert (finding["remedy"] == "") == (finding["result"] == "ok")
    used = cloud.json("node", "show")["drivers"][0]["accelerator"]
    assert findings["accelerator"]["result"] == ("ok" if used == "kvm" else "warning")


def test_doctor_leaves_nothing_behind(cloud: Cli) -> None:
    before = cloud.status()
    cloud("doctor")
    assert {**cloud.status(), "free": None} == {**before, "free": None}
