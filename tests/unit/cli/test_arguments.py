from __future__ import annotations

import pytest

from atoll.cli.arguments import (
    add_noun,
    add_verb,
    help_text,
    noun_of,
    parse_duration_s,
    parse_tags,
    plain_mac,
    top_parser,
)
from atoll.cli.main import NOUNS
from atoll.errors import Invalid, Malformed


def parser_of_dogs():
    parser, commands = top_parser()
    verbs = add_noun(commands, "dog", "Dogs.")
    bark = add_verb(verbs, "bark", lambda options: None, summary="Bark.", example="atoll dog bark")
    bark.add_argument("--how", choices=["loud", "low"])
    bark.add_argument("name")
    return parser


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ([], (None, False)),
        (["-h"], (None, True)),
        (["--dir", "vm", "--help"], (None, True)),
        (["vm", "--help"], ("vm", False)),
        (["--dir", "vm", "node"], ("node", False)),
        (["--dir=vm", "-q", "node", "vm"], ("node", False)),
        (["--ca", "x", "ca", "list"], ("ca", False)),
        (["--dir"], (None, False)),
    ],
)
def test_the_noun_is_the_first_word_that_is_no_option_nor_its_value(argv, found):
    assert noun_of(argv, NOUNS) == found


def test_a_noun_that_is_nearly_right_gets_a_suggestion():
    with pytest.raises(Malformed) as refusal:
        noun_of(["imgae", "list"], NOUNS)
    assert refusal.value.hint == "did you mean image?"
    assert refusal.value.exit_status == 2


def test_an_option_of_a_verb_before_the_noun_is_refused():
    with pytest.raises(Malformed, match="-o: not an option"):
        noun_of(["-o", "json", "vm", "list"], NOUNS)


@pytest.mark.parametrize(
    "argv",
    [
        ["--dir", "/x", "dog", "bark", "rex"],
        ["dog", "--dir", "/x", "bark", "rex"],
        ["dog", "bark", "rex", "--dir", "/x"],
        ["--dir", "/y", "dog", "bark", "--dir=/x", "rex"],
    ],
)
def test_global_options_may_stand_anywhere_and_the_last_counts(argv):
    options = parser_of_dogs().parse_args(argv)
    assert (options.dir, options.node, options.quiet, options.name) == ("/x", None, False, "rex")


@pytest.mark.parametrize(
    ("argv", "brief", "hint"),
    [
        (["dog", "brak"], "dog: verb 'brak': there is none of that name", "did you mean bark?"),
        (["dog", "zzz"], "dog: verb 'zzz': there is none of that name", "one of: bark"),
        (["dog", "bark", "x", "--how", "loudly"],
         "dog bark: --how 'loudly': there is none of that name", "did you mean loud?"),
        (["dog", "bark"],
         "dog bark: the following arguments are required: name", "see: atoll dog bark --help"),
        (["dog", "bark", "rex", "--di", "/x"],
         "dog bark: option '--di': there is none of that name", "did you mean --dir?"),
        (["dog", "ls"], "dog: verb 'ls': there is none of that name", "one of: bark"),
        (["dog", "bark", "rex", "max"],
         "dog bark: unrecognized arguments: max", "see: atoll dog bark --help"),
    ],
)  # fmt: skip
def test_usage_errors_read_like_other_errors(argv, brief, hint):
    with pytest.raises(Malformed) as refusal:
        parser_of_dogs().parse_args(argv)
    assert (refusal.value.brief, refusal.value.hint) == (brief, hint)


def test_help_names_every_noun_with_its_summary():
    text = help_text({"dog": "man's friend", "cat": "its own"})
    assert "  dog         man's friend\n  cat         its own\n" in text


def test_help_fits_80_columns():
    assert max(map(len, help_text(NOUNS).splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90), ("0.5s", 0.5), ("15m", 900), ("24h", 86400), ("30d", 2592000), ("2H", 7200), ("0", 0)),
        *(("1h30m", 5400), ("500ms", 0.5), ("2w", 1209600)),
    ],
)
def test_durations_have_units(text, seconds):
    assert parse_duration_s("timeout", text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1e3", "inf", "nan", "1 h", "1y", "9" * 20, "1.", "\u0663", "h", "5"]
)
def test_other_durations_are_refused(text):
    with pytest.raises(Invalid, match="timeout"):
        parse_duration_s("timeout", text)


@pytest.mark.parametrize("text", ["90", "1.5"])
def test_a_duration_without_a_unit_is_refused_with_what_it_may_mean(text):
    with pytest.raises(Invalid, match="has no unit") as refusal:
        parse_duration_s("timeout", text)
    assert refusal.value.hint == f"write {text}s or {text}m"


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("52:54:0A:01:02:Ff", "52:54:0a:01:02:ff"),
        ("52-54-0a-01-02-03", "52:54:0a:01:02:03"),
        ("10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9"),
        ("52:54", "52:54"),
    ],
)
def test_macs_in_any_case(text, mac):
    assert plain_mac(text) == mac


def test_a_tag_may_be_empty_and_may_contain_an_equals_sign():
    assert parse_tags(["a=", "b=c=d"]) == {"a": "", "b": "c=d"}


@pytest.mark.parametrize("pairs", [["a"], ["a=1", "a=2"]])
def test_a_tag_without_value_or_given_twice_is_refused(pairs):
    with pytest.raises(Invalid, match="tag"):
        parse_tags(pairs)
