from __future__ import annotations

import pytest

from atoll.api.given import ChangeNode
from atoll.api.quotas import SetQuota
from atoll.cli.main import parser_for
from atoll.cli.node import node_change_of
from atoll.cli.output import Style, render_list
from atoll.cli.quota import QUOTA_VIEW, ROW_VIEW, holder_of, set_of
from atoll.cli.vm_view import vm_view
from atoll.errors import Invalid, Malformed
from atoll.model.quota import Amounts, Holder, HolderKind, Limits, Quota, Quotas, Resource
from atoll.model.vm import VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.quotas import use_of
from samples import a_vm


def asked(*argv: str) -> SetQuota:
    return set_of(parser_for(["quota"]).parse_args(["quota", "set", *argv]))


def test_amounts_are_written_as_people_write_them():
    found = asked("--user", "ann", "--vms", "5", "--cpus", "1.5", "--memory", "2GiB", "--disk", "none")
    assert found == SetQuota(HolderKind.USER, "ann", vms=5, milli_cpus=1500, memory_mib=2048, disk_mib=None)
    before = Limits(disk_mib=7, addresses=3)
    assert found.applied_to(before) == Limits(5, 1500, 2048, None, 3)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--user", "ann"],
        ["--vms", "5"],
        ["--user", "ann", "--group", "web", "--vms", "5"],
        ["--user", "ann", "--vms", "-1"],
        ["--user", "ann", "--vms", "many"],
        ["--user", "ann", "--memory", "much"],
        ["--user", "a/b", "--vms", "1"],
    ],
)
def test_what_makes_no_sense_is_refused(argv: list[str]):
    with pytest.raises((Invalid, Malformed)) as refusal:
        asked(*argv)
    assert refusal.value.exit_status == 2


def test_the_default_has_no_name():
    options = parser_for(["quota"]).parse_args(["quota", "delete", "--default"])
    assert holder_of(options) == Holder(HolderKind.DEFAULT)


def test_used_and_limit_stand_side_by_side():
    quotas = Quotas(users=(Quota("ann", Limits(vms=5, memory_mib=1024)),))
    use = use_of(Holder(HolderKind.USER, "ann"), quotas, Amounts(2, 500, 256, 0, 2))
    columns = QUOTA_VIEW.pick(["name", "vms", "cpus", "memory", "quota", "free"])
    (_, row) = render_list(QUOTA_VIEW, [use], Style(columns=columns)).splitlines()
    assert [column.text(use) for column in columns] == [
        *("ann", "2 of 5", "0.5 of -", "256 MiB of 1 GiB", "own", "vms 3, memory 768 MiB")
    ]
    assert row.startswith("ann   2 of 5  ")


def test_one_quota_is_shown_with_limit_used_and_free():
    quotas = Quotas(default=Limits(vms=5))
    use = use_of(Holder(HolderKind.USER, "ann"), quotas, Amounts(2, 500, 256, 0, 2))
    header, vms, cpus, *_ = render_list(ROW_VIEW, [(use, each) for each in Resource], Style()).splitlines()
    assert header.split() == ["KIND", "NAME", "RESOURCE", "LIMIT", "USED", "FREE", "QUOTA"]
    assert vms.split() == ["user", "ann", "vms", "5", "2", "3", "default"]
    assert cpus.split() == ["user", "ann", "cpus", "-", "0.5", "-", "default"]


def ratios(*argv: str) -> ChangeNode:
    return node_change_of(parser_for(["node"]).parse_args(["node", "change", *argv]))


def test_over_commit_is_a_number_of_times_or_none():
    assert ratios("--cpu-overcommit", "4") == ChangeNode(cpu_overcommit=4.0)
    assert ratios("--memory-overcommit", "none") == ChangeNode(memory_overcommit=None)
    for argv in ([], ["--cpu-overcommit", "x"], ["--cpu-overcommit", "0.5"], ["--cpu-overcommit", "nan"]):
        with pytest.raises(Invalid):
            ratios(*argv)


def test_a_vm_that_is_down_shows_what_it_holds():
    (holds,) = vm_view(a_vm().created_at).pick(["holds"])
    assert holds.text(a_vm()) == "-"
    stopped = a_vm(state=VmState.STOPPED, volumes=(Volume(VolumeFormat.RAW, 1024),))
    assert holds.text(stopped) == "disk 1 GiB, address 10.1.0.5; reserved: memory 128 MiB, cpus 0.25"
