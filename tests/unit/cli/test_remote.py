from __future__ import annotations

import io
from pathlib import Path

import pytest

from atoll.cli.main import main
from atoll.cli.remote_add import next_steps


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "ATOLL_REMOTE", "ATOLL_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("add", "local", "192.0.2.7"), 2, "is the cloud on this machine"),
        (("add", "prod", "atoll1_x"), 2, "read by every user of this machine"),
        (("add", "prod", "192.0.2.7", "atoll1_x"), 2, "atoll remote add prod < FILE"),
        (("add", "prod", "192.0.2.7"), 2, "--fingerprint"),
        (("add", "prod", "192.0.2.7", "--certificate", "c"), 2, "with a name alone"),
        (("add", "prod", "192.0.2.7", "--fingerprint", "x"), 2, "not a SHA-256 fingerprint"),
        (("add", "prod", "--certificate", "c"), 3, "there is none of that name"),
        (("show", "prod"), 3, "there is none of that name"),
        (("show",), 2, "atoll status"),
        (("use", "prod"), 3, "there is none of that name"),
        (("remove", "prod", "--yes"), 3, "there is none of that name"),
        (("invite", "zoe", "--remote", "prod"), 2, "cloud on this machine"),
        (("invite", "zoe", "--limit", "vm.lsit"), 2, "vm.list"),
        (("invite", "zoe", "--for", "60"), 2, "has no unit"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(words, status, said, capsys):
    assert main(["remote", *words]) == status
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


@pytest.mark.parametrize(
    ("typed", "said"),
    [("", "neither a token nor an address"), ("atoll1_x\n", "not whole"), ("x", "begin with")],
)
@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_token_that_is_none_is_refused_and_not_repeated(words, typed, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert main(["remote", "add", "prod", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert "atoll1_x" not in out + err


def test_nobody_has_a_remote_at_first(capsys):
    assert main(["remote", "list", "-o", "name"]) == 0
    assert capsys.readouterr().out == ""


def test_the_second_step_by_hand_is_told_in_whole_commands():
    said = "\n".join(next_steps(Path("/home/zoe/request.pem"), "prod", "zoe"))
    assert "atoll ca sign request.pem --user zoe --out zoe.pem" in said
    assert "atoll remote add prod --certificate zoe.pem" in said
