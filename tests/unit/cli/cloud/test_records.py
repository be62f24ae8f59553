from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll import RECORD_FORMAT
from atoll.cli.cloud.layout import Paths
from atoll.cli.cloud.steps import check_records
from atoll.errors import Conflict


def record(paths: Paths, name: str, content: str) -> Path:
    path = paths.node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize("name", ["node.json", "vms/10.0.0.5/vm.json"])
def test_records_that_need_a_later_version_are_refused_by_name(tmp_path: Path, name: str) -> None:
    paths = Paths(tmp_path)
    path = record(paths, name, json.dumps({"needs_format": RECORD_FORMAT + 1}))
    with pytest.raises(Conflict, match="written by a later version") as refused:
        check_records(paths)
    assert str(path) in refused.value.brief


def test_records_of_earlier_versions_and_those_that_nobody_can_read_are_left_to_the_agent(
    tmp_path: Path,
) -> None:
    paths = Paths(tmp_path)
    check_records(paths)
    record(paths, "node.json", "{}")
    record(paths, "vms/10.0.0.5/vm.json", json.dumps({"format": 99, "needs_format": RECORD_FORMAT}))
    record(paths, "vms/10.0.0.6/vm.json", "torn")
    check_records(paths)
