from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import completion
from atoll.cli.arguments import VM_METAVAR, Parser, add_noun, add_verb, top_parser
from atoll.cli.completing import (
    Names,
    Next,
    Paths,
    global_options,
    next_words,
    option,
    split_line,
    subparsers,
)
from atoll.cli.completion import answer, answer_shell
from atoll.cli.completion_names import Known, KnownVm, named
from atoll.cli.main import NOUNS, parser_for
from atoll.cli.output import View

BREAKS = " \t\n\"'@><=;|&(:"


def parser_of_dogs() -> Parser:
    parser, commands = top_parser()
    verbs = add_noun(commands, "dog", "A dog's life.")
    bark = add_verb(verbs, "bark", lambda options: None, summary="Bark.", example="atoll dog bark")
    bark.add_argument("--how", choices=["loud", "low"], help="a dog's way")
    bark.add_argument("--at", metavar="FILE")
    bark.add_argument("--in", metavar="DIR")
    bark.add_argument("--twice", action="store_true")
    bark.add_argument("--tag", action="append", metavar="KEY=VALUE")
    bark.add_argument("vm", metavar=VM_METAVAR)
    bark.add_argument("volumes", nargs="+", metavar="VOLUME")
    return parser


def after(line: str, current: str = "") -> Next:
    return next_words(parser_of_dogs(), line.split(), current)


def words(line: str) -> list[str]:
    """What is offered at the end of a line of the real command, as bash has it."""
    split = split_line(f"atoll {line}", "atoll")
    assert split is not None
    return [each.partition("\t")[0] for each in answer(*split, breaks=BREAKS).splitlines()[1:]]


def test_nouns_and_verbs_come_with_what_they_are_for():
    assert after("").words == {"dog": "A dog's life."}
    assert after("dog").words == {"bark": "Bark."}
    assert after("-q dog").words == {"bark": "Bark."}
    assert after("--dir /x dog").words == {"bark": "Bark."}


def test_choices_files_directories_and_names():
    assert list(after("dog bark --how").words) == ["loud", "low"]
    assert after("dog bark --at").paths is Paths.FILES
    assert after("dog bark --in").paths is Paths.DIRECTORIES
    assert after("dog bark --twice").names is Names.VM
    assert after("dog bark").names is Names.VM
    assert after("--cert").paths is Paths.FILES
    assert after("dog bark --cert").paths is Paths.FILES


def test_an_argument_that_may_be_repeated_is_offered_again_and_knows_whose_it_is():
    for line in ("dog bark rex", "dog bark rex a b", "dog bark --how low rex a"):
        assert after(line) == Next(names=Names.VOLUME, of_vm="rex")


def test_a_value_behind_an_equals_sign_keeps_what_stands_before_it():
    found = after("dog bark", "--how=l")
    assert (list(found.words), found.kept) == (["loud", "low"], "--how=")
    assert after("dog bark", "--at=/e").paths is Paths.FILES
    assert after("dog bark", "--twice=") == after("dog bark", "--what=") == Next()


def test_options_are_offered_until_they_were_given_and_global_ones_only_before_a_noun():
    assert list(after("dog bark", "-").words) == [
        "--help",
        "--quiet",
        "--how",
        "--at",
        "--in",
        "--twice",
        "--tag",
    ]
    left = after("dog bark --how low --twice --tag a=b", "--").words
    assert list(left) == ["--help", "--quiet", "--at", "--in", "--tag"]
    assert "--dir" in after("", "-").words


def test_nothing_is_offered_where_nothing_is_known():
    for line in ("cat", "dog meow", "dog bark rex -- a"):
        assert after(line) == Next()


def test_which_cloud_is_meant_is_read_off_the_line():
    found = global_options(["--dir", "/x", "vm", "show", "--node=n1", "--cert"])
    assert (found["dir"], found["node"], found["cert"], found["key"]) == ("/x", "n1", "", None)


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("atoll ", ([], "")),
        ("atoll vm", ([], "vm")),
        ("atoll vm ", (["vm"], "")),
        ("sudo -E atoll vm 'a b", (["vm"], "a b")),
        ('atoll vm "a', (["vm"], "a")),
        ("atoll vm a\\ b", (["vm"], "a b")),
        ("atol", None),
        ("echo x ", None),
    ],
)
def test_a_line_is_split_as_a_shell_does(line: str, split: Any):
    assert split_line(line, "atoll") == split


def test_of_the_real_command():
    assert words("") == list(NOUNS)
    assert words("vm st") == ["start", "stop"]
    assert words("help vm st") == ["start", "stop"]
    assert words("vm list --state st") == ["starting", "stopping", "stopped"]
    assert words("vm create --wait-for m") == ["metadata"]
    assert words("vm show --out") == ["--output"]
    assert words("node add-subnet ") == []
    assert words("--node ") == []
    assert words("--node n1 im") == ["image"]
    assert words("--no") == ["--node"]
    assert words("vm exec web -- ls ") == []
    assert words("nonsense ") == []


def test_columns_are_offered_one_by_one_in_the_case_that_they_are_typed():
    assert words("vm list -c na") == ["name"]
    assert words("vm list -c name,I") == ["name,IP", "name,IMAGE", "name,IP6", "name,INSTANCE"]
    assert words("image list -c name,kinds,d") == ["name,kinds,digest", "name,kinds,description"]
    assert "name,name" not in words("vm list -c name,")
    assert words("vm list --sort=-mem") == ["-memory"]
    assert words("vm list --columns=st") == ["state", "started-by", "stages"]


def test_fields_of_a_volume_are_offered_behind_commas():
    assert words("vm create --volume si") == ["size="]
    # A new word of bash's begins behind an equals sign.
    assert words("vm create --volume size=1GiB,fs") == ["1GiB,fs=ext4"]


def verbs(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    below = subparsers(parser)
    if below is None:
        yield " ".join(path), parser
        return
    for name, child in below.choices.items():
        yield from verbs(child, (*path, name))


WITH_COLUMNS = {path: parser for path, parser in verbs(parser_for(NOUNS)) if option(parser, "--columns")}


class Picked(Exception):
    """Stands for the columns that a command is about to show."""


@pytest.mark.parametrize("path", WITH_COLUMNS)
def test_the_columns_are_those_of_what_the_command_shows(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATOLL_DIR", "/nonexistent")
    pick = View.pick

    def picked(view: View[Any], names: Any) -> Any:
        raise Picked([column.name for column in view.columns])

    monkeypatch.setattr(View, "pick", picked)
    samples = {
        "kind": "user",
        "ports": "8080:80",
        "size": "1GiB",
        "ips": "10.0.0.5",
        "addresses": "10.0.0.5",
        "mac": "52:54:00:00:00:01",
    }
    parser = WITH_COLUMNS[path]
    given = [samples.get(each.dest, "x") for each in parser._actions if not each.option_strings]
    needed = [
        word
        for each in parser._actions
        if each.option_strings and each.required
        for word in (each.option_strings[-1], "x")
    ]
    needed += ["--default", "--vms", "1"] if path == "quota set" else []
    options = parser_for(NOUNS).parse_args([*path.split(), *given, *needed, "-c", "x"])
    with pytest.raises(Picked) as shown:
        options.run(options)
    monkeypatch.setattr(View, "pick", pick)
    assert words(f"{path} -c ") == shown.value.args[0]


KNOWN = Known(
    vms=(
        KnownVm("web", "10.0.0.5", "running", ("ann",), ("tier=front", "note=$(reboot)"), ("root", "data")),
        KnownVm("db", "10.0.0.6", "stopped", ("ann", "bob smith"), (), ("root",)),
    ),
    images={"appliance": "tiny"},
    subnets={"lan": "10.0.0.0/24"},
    stores=("fast",),
    kinds=("qemu", "lxc"),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Next(names=Names.VM), {"web": "10.0.0.5 running", "db": "10.0.0.6 stopped"}),
        (Next(names=Names.VM_PATH), {"web:": "10.0.0.5 running", "db:": "10.0.0.6 stopped"}),
        (Next(names=Names.VOLUME, of_vm="web"), {"root": "", "data": ""}),
        (Next(names=Names.VOLUME, of_vm="10.0.0.6"), {"root": ""}),
        (Next(names=Names.VOLUME, of_vm="other"), {}),
        (Next(names=Names.IMAGE), {"appliance": "tiny"}),
        (Next(names=Names.SUBNET), {"lan": "10.0.0.0/24"}),
        (Next(names=Names.STORE), {"fast": ""}),
        (Next(names=Names.KIND), {"lxc": "", "qemu": ""}),
        (Next(), {}),
    ],
)
def test_names_are_those_of_the_node(wanted: Next, found: dict[str, str]):
    assert named(wanted, KNOWN) == found


def test_what_a_shell_would_not_take_as_it_is_is_not_offered():
    assert named(Next(names=Names.TAG), KNOWN) == {"tier=front": ""}
    assert named(Next(names=Names.OWNER), KNOWN) == {"ann": ""}


def test_remotes_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("office", "lab"):
        (tmp_path / "atoll" / "remotes" / name).mkdir(parents=True)
        (tmp_path / "atoll" / "remotes" / name / "remote.json").touch()
    assert words("remote use ") == ["lab", "office"]
    assert words("--remote o") == ["office"]
    assert words("remote add ") == []


def test_whatever_goes_wrong_nothing_is_said(capsys: pytest.CaptureFixture[str]):
    for argv in ([], ["bash"], ["bash", "atoll", "", "atoll --wrong "]):
        assert answer_shell(argv) in (0, 1)
        said = capsys.readouterr()
        assert (said.out.strip(), said.err) == ("", "")


def test_the_scripts_ask_the_command():
    for script in completion.SCRIPTS.values():
        assert f" {completion.HIDDEN} " in script
