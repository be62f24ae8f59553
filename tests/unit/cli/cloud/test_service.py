from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.cloud import service
from atoll.cli.main import main


def test_the_cloud_in_the_usual_place_has_the_plain_name_and_others_have_their_own():
    assert service.of(Path("/var/lib/atoll"), "0a1b2c").name == "atoll.service"
    assert service.of(Path("/srv/cloud"), "0a1b2c").name == "atoll-0a1b2c.service"


def test_a_service_has_of_the_callers_environment_what_a_cloud_needs_and_nothing_else():
    told = {"ATOLL_CACHE": "/var/cache", "ATOLL_IDS": "", "ATOLL_KEY": "/root/key", "PASSWORD": "x"}
    assert service.variables(told) == {"ATOLL_CACHE": "/var/cache"}


def test_the_unit_can_be_had_without_a_cloud_and_without_any_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["service", "install", "--print", "--dir", str(tmp_path)]) == 0
    assert f"--dir {tmp_path} up --foreground" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["install", "uninstall", "show"])
def test_where_there_is_no_cloud_there_is_no_service(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["service", verb, "--dir", str(tmp_path)]) == 7
    assert "start one with: atoll up" in capsys.readouterr().err
