from __future__ import annotations

import pytest

from atoll.cli.main import parser_for
from atoll.cli.vm_exec import parse_env
from atoll.errors import Invalid, Malformed


def parsed(*words: str):
    return parser_for(["vm"]).parse_args(["vm", *words])


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "web", "-t", "--", "git", "-t", "--", "x"),
        ("exec", "-t", "web", "--", "git", "-t", "--", "x"),
    ],
)
def test_what_follows_two_dashes_is_the_commands_own(words: tuple[str, ...]) -> None:
    options = parsed(*words)
    assert (options.vm, options.tty, options.stdin, options.words) == (
        "web",
        True,
        False,
        ["git", "-t", "--", "x"],
    )


def test_options_of_atoll_itself_may_stand_anywhere_before() -> None:
    options = parsed("exec", "web", "--dir", "/x", "--env", "A=1", "--timeout", "30s", "--", "ls", "--dir")
    assert (options.dir, options.env, options.timeout, options.words) == (
        "/x",
        ["A=1"],
        "30s",
        ["ls", "--dir"],
    )


def test_without_two_dashes_there_is_no_command() -> None:
    options = parsed("exec", "web")
    with pytest.raises(Malformed, match="no command was given") as refusal:
        options.run(options)
    assert "-- ls" in refusal.value.hint


def test_a_variable_without_a_value_is_taken_from_here() -> None:
    assert parse_env(["A=b=c", "TOKEN"], {"TOKEN": "s"}) == {"A": "b=c", "TOKEN": "s"}
    with pytest.raises(Invalid, match="is not set here"):
        parse_env(["NONE"], {})
