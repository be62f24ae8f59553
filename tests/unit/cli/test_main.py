from __future__ import annotations

import argparse

import pytest

from atoll.cli.arguments import Parser, verb_of
from atoll.cli.main import NOUNS, main, parser_for
from atoll.cli.vm import MODULES

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
        "list", "show", "add", "attach", "detach", "grow", "shrink", "move", "reorder", "delete",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["create", "list", "show", "start", "stop", "reboot"])
def test_whatever_lists_or_shows_vms_takes_an_output_format(verb):
    actions = {flag: action for action in verbs_of("vm")[verb]._actions for flag in action.option_strings}
    assert tuple(actions["-o"].choices) == ("table", "wide", "json", "yaml", "name")


@pytest.mark.parametrize(
    ("argv", "begins"),
    [
        ([], "usage: atoll [options] NOUN"),
        (["--help"], "usage: atoll [options] NOUN"),
        (["help"], "usage: atoll [options] NOUN"),
        (["vm"], "usage: atoll vm"),
        (["vm", "--help"], "usage: atoll vm"),
        (["help", "vm"], "usage: atoll vm"),
        (["vm", "help"], "usage: atoll vm"),
        (["help", "vm", "create"], "usage: atoll vm create"),
        (["vm", "help", "create"], "usage: atoll vm create"),
        (["help", "up"], "usage: atoll up"),
    ],
)
def test_help_is_on_standard_output_and_a_success(capsys, argv, begins):
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(begins)
    assert captured.err == ""


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_help(capsys, noun):
    assert main(["help", noun]) == 0
    assert noun in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["vm", "rm", "web"], "did you mean destroy?"),
        (["vm", "delete", "web"], "did you mean destroy?"),
        (["vm", "ls"], "did you mean list?"),
        (["vm", "lsit"], "did you mean list?"),
        (["vm", "restart", "web"], "did you mean reboot?"),
        (["volume", "rm", "web", "data"], "did you mean delete?"),
        (["vm", "list", "--format", "json"], "did you mean --output?"),
        (["vm", "create", "--mem", "1G"], "did you mean --memory?"),
        (["vm", "create", "--memroy", "1G"], "did you mean --memory?"),
        (["vm", "destroy", "web", "--force"], "did you mean --yes?"),
        (["vm", "list", "-o", "jsno"], "did you mean json?"),
        (["rm", "web"], "did you mean: atoll vm destroy"),
        (["list"], "did you mean: atoll vm list"),
        (["ps"], "did you mean: atoll vm list"),
        (["vms"], "did you mean vm?"),
    ],
)
def test_a_wrong_word_gets_the_nearest(capsys, argv, hint):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"  hint: {hint}"


@pytest.mark.parametrize("word", ["ssh", "shell", "exec"])
def test_whoever_wants_to_get_into_a_guest_is_told_how(word):
    from atoll.cli.words import nearest

    assert nearest(word, verbs_of("vm")) in ("ssh", "shell", "exec", "console")


@pytest.mark.parametrize(
    ("argv", "brief"),
    [
        (
            ["vm", "create", "--name", "web", "--memory", "1M"],
            "atoll: --memory 1: must be a whole number from 16",
        ),
        (["vm", "create", "--name", "web", "--memory", "512"], "atoll: --memory '512': has no unit"),
        (["vm", "create", "--name", "a/b"], "atoll: --name 'a/b': "),
        (["vm", "create", "--name", "web", "--timeout", "90"], "atoll: --timeout '90': has no unit"),
        (["vm", "create", "--name", "web", "--expires", "x"], "atoll: --expires 'x': is not a duration"),
        (["vm", "change", "web", "--cpus", "2000"], "atoll: --cpus 2000000: "),
    ],
)
def test_errors_speak_of_options(capsys, argv, brief):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(brief)


@pytest.mark.parametrize(
    "argv",
    [
        ["vm", "list"],
        ["vm", "stop", "a", "b"],
        ["vm", "create"],
        ["status"],
        ["down"],
        ["event", "list"],
        ["node", "show"],
    ],
)
def test_without_a_cloud_every_command_ends_the_same_way(capsys, tmp_path, argv):
    assert main([*argv, "--dir", str(tmp_path / "none")]) == 7
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"atoll: no cloud in {tmp_path / 'none'}"
    assert "atoll up" in hint


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


def test_every_verb_of_vms_is_in_the_module_that_is_said_to_have_it():
    assert set(MODULES) == set(verbs_of("vm"))
    for verb in MODULES:
        found = parser_for(["vm"], verb)._subparsers._group_actions[0].choices["vm"]
        assert verb in found._subparsers._group_actions[0].choices


def test_a_word_that_is_no_verb_is_compared_with_all_of_them():
    found = parser_for(["vm"], "destory")._subparsers._group_actions[0].choices["vm"]
    assert set(found._subparsers._group_actions[0].choices) == set(MODULES)


@pytest.mark.parametrize(
    ("argv", "verb"),
    [
        (["vm", "list"], "list"),
        (["--dir", "vm", "vm", "list"], "vm"),
        (["vm", "--dir", "x", "list"], None),
        (["vm"], None),
    ],
)
def test_the_verb_is_the_word_after_the_noun(argv, verb):
    assert verb_of(argv, "vm") == verb
