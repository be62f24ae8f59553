from __future__ import annotations

import json

import pytest

from atoll.api.hypervisor import VmFilter
from atoll.cli.main import parser_for
from atoll.cli.vm_filter import filter_of
from atoll.errors import AtollError
from atoll.model.vm import VmState


def wanted(*argv: str) -> VmFilter | None:
    return filter_of(parser_for(["vm"]).parse_args(["vm", "list", *argv]))


def test_what_is_typed_is_what_is_asked_for():
    assert wanted() is None
    assert wanted("--mine") == VmFilter(mine=True)
    assert wanted("--owner", "ann", "--state", "running", "--kind", "lxc") == VmFilter(
        owner="ann", state=VmState.RUNNING, kind="lxc"
    )
    asked = wanted("--tag", "a=1", "--tag", "b=x y")
    assert asked is not None
    assert json.loads(asked.tags or "") == {"a": "1", "b": "x y"}


@pytest.mark.parametrize("argv", [["--tag", "a"], ["--state", "asleep"], ["--kind", "../x"], ["--owner", ""]])
def test_what_makes_no_sense_is_refused(argv: list[str]):
    with pytest.raises(AtollError) as refusal:
        wanted(*argv)
    assert refusal.value.exit_status == 2
