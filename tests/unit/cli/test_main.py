from __future__ import annotations

import argparse

import pytest

from atoll.cli.arguments import Parser
from atoll.cli.main import NOUNS, main, parser_for

OURS = ("vm", "node", "image", "event", "ca", "completion")


def verbs_of(noun: str) -> dict[str, Parser]:
    found = parser_for([noun])._subparsers._group_actions[0].choices[noun]
    return found._subparsers._group_actions[0].choices


@pytest.mark.parametrize("noun", OURS)
def test_every_verb_says_what_it_does_with_an_example_that_its_parser_takes(noun):
    for name, verb in verbs_of(noun).items():
        assert verb.description
        assert callable(verb.get_default("run"))
        example = verb.epilog.splitlines()[1]
        assert f"atoll {noun} {name}" in example


@pytest.mark.parametrize("noun", OURS)
def test_nouns_are_in_the_table(noun):
    assert NOUNS[noun]


def test_the_contract_of_vm_verbs():
    assert {
        "create", "list", "show", "start", "stop", "reboot", "destroy", "console", "log", "user-data",
        "change", "become-primary-owner", "top",
    } <= set(verbs_of("vm"))  # fmt: skip


def test_the_contract_of_volume_verbs():
    assert list(verbs_of("volume")) == [
        "list", "add", "attach", "detach", "grow", "shrink", "move", "reorder", "delete",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["create", "list", "show", "start", "stop", "reboot"])
def test_whatever_lists_or_shows_vms_takes_an_output_format(verb):
    actions = {flag: action for action in verbs_of("vm")[verb]._actions for flag in action.option_strings}
    assert tuple(actions["-o"].choices) == ("table", "wide", "json", "yaml", "name")


def test_no_noun_is_a_usage_error_and_help_is_not(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out == ""
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: atoll")


def test_a_failure_is_two_lines_on_standard_error(capsys):
    assert main(["vm", "lsit"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "atoll: vm: verb 'lsit': there is none of that name\n  hint: did you mean list?\n"


def test_help_of_a_verb_is_success(capsys):
    assert main(["vm", "create", "--help"]) == 0
    assert "--wait-for STAGE" in capsys.readouterr().out


def test_commands_are_given_to_register_as_argparse_knows_them():
    assert isinstance(parser_for(["vm"])._subparsers._group_actions[0], argparse._SubParsersAction)
