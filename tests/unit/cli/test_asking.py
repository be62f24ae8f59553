from __future__ import annotations

import argparse
import io
from pathlib import Path

import msgspec
import pytest
from tests.shared.samples import a_vm

from atoll.cli.asking import MOST_SHOWN, check_can_ask, confirm, question_text, vm_going, vms_on_disk
from atoll.errors import AtollError, Malformed
from atoll.model.vm import VM
from atoll.model.volume import Volume, VolumeFormat

WEB = a_vm(volumes=(Volume(VolumeFormat.MEMORY, 64),))
ASKS = argparse.Namespace(yes=False)
SAYS_YES = argparse.Namespace(yes=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> Terminal:
    """A person at a terminal who answers this; what they see."""
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def test_without_a_terminal_nothing_is_destroyed_unasked(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(Malformed, match="nothing was done") as refusal:
        check_can_ask("vm destroy web", ASKS)
    assert (refusal.value.exit_status, refusal.value.hint) == (2, "say --yes")
    check_can_ask("vm destroy web", SAYS_YES)


def test_an_answer_on_a_pipe_is_no_answer(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(Malformed):
        confirm("destroy it", ["all"], ASKS)


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yep\n", "ye"])
def test_anything_but_yes_is_no(monkeypatch, answer):
    answering(monkeypatch, answer)
    with pytest.raises(AtollError, match="not confirmed: nothing was done") as refusal:
        confirm("destroy VM web", [vm_going(WEB)], ASKS)
    assert refusal.value.exit_status == 1


@pytest.mark.parametrize("answer", ["y\n", "Y\n", "yes\n", " YES \n"])
def test_yes_is_yes(monkeypatch, answer):
    terminal = answering(monkeypatch, answer)
    confirm("destroy VM web", [vm_going(WEB)], ASKS, ["the image"])
    assert terminal.getvalue().splitlines() == [
        "this goes for good:",
        "  web (10.1.0.5, running): root 64 MiB in memory",
        "this is kept:",
        "  the image",
        "destroy VM web? [y/N] ",
    ]


def test_whoever_said_yes_is_not_asked(monkeypatch):
    terminal = answering(monkeypatch, "")
    confirm("destroy VM web", ["all"], SAYS_YES)
    assert terminal.getvalue() == ""


def test_a_vm_is_named_with_its_volumes_and_their_sizes():
    volumes = (
        {"format": "memory", "size_mib": 0},
        {"format": "raw", "size_mib": 2048, "name": "data", "fs": "ext4", "store": "s"},
        {"format": "raw", "size_mib": 64, "name": "fast", "type": "memory"},
    )
    vm = msgspec.convert(msgspec.to_builtins(WEB) | {"volumes": volumes, "protected": True}, VM)
    assert vm_going(vm) == (
        "web (10.1.0.5, running, protected: will be refused):"
        " root in memory; data 2 GiB, ext4; fast 64 MiB in memory"
    )


def test_a_long_list_leaves_the_question_on_the_screen():
    text = question_text("destroy it", [f"vm{number}" for number in range(100)], [])
    assert len(text.splitlines()) == MOST_SHOWN + 3
    assert "  … and 80 more\n" in text


def test_what_goes_cannot_forge_a_line_of_the_question():
    assert question_text("destroy a\x1b[2J", ["one\nthis is kept:"], []).splitlines() == [
        "this goes for good:",
        "  one\\nthis is kept:",
        "destroy a\\u001b[2J? [y/N] ",
    ]


def test_vms_are_named_by_their_records(tmp_path: Path):
    (tmp_path / "10.0.0.1").mkdir()
    (tmp_path / "10.0.0.1" / "vm.json").write_bytes(msgspec.json.encode({"vm": WEB, "want": "running"}))
    (tmp_path / "10.0.0.2").mkdir()
    (tmp_path / "10.0.0.2" / "vm.json").write_text("{")
    assert vms_on_disk(tmp_path) == [vm_going(WEB), "10.0.0.2 (its record cannot be read)"]
    assert vms_on_disk(tmp_path / "none") == []
