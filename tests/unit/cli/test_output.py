from __future__ import annotations

import argparse
import io
import json
from contextlib import redirect_stdout

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.output import (
    Column,
    Results,
    Style,
    View,
    add_list_options,
    age,
    ip_key,
    render_list,
    render_one,
    style_of,
    table,
)
from atoll.cli.terminal import painted, printable, width_of
from atoll.errors import Malformed


class Dog(msgspec.Struct):
    name: str
    kg: int
    toys: dict[str, str] = {}


REX, ADA = Dog("rex", 9), Dog("ada", 30, {"ball": "red"})
VIEW: View[Dog] = View(
    name=lambda dog: dog.name,
    columns=(
        Column("name", lambda dog: dog.name, paint=lambda dog: "32"),
        Column("kg", lambda dog: str(dog.kg), key=lambda dog: dog.kg),
        Column("toys", lambda dog: str(len(dog.toys)), wide=True),
    ),
)


def style(*argv: str) -> Style[Dog]:
    parser = argparse.ArgumentParser()
    add_list_options(parser)
    return style_of(parser.parse_args(argv), VIEW)


def test_a_table_is_aligned_and_has_no_blanks_at_the_ends():
    assert render_list(VIEW, [REX, ADA], style()) == "NAME  KG\nrex   9\nada   30\n"


def test_wide_shows_all_columns_and_c_the_ones_asked_for():
    assert render_list(VIEW, [REX], style("-o", "wide")) == "NAME  KG  TOYS\nrex   9   0\n"
    assert render_list(VIEW, [REX], style("-c", "toys,name")) == "TOYS  NAME\n0     rex\n"


def test_without_header_there_are_rows_only():
    assert render_list(VIEW, [REX], style("--no-header")) == "rex  9\n"


def test_an_empty_table_is_its_header():
    assert render_list(VIEW, [], style()) == "NAME  KG\n"


@pytest.mark.parametrize(
    ("sort", "names"),
    [("--sort=kg", ["rex", "ada"]), ("--sort=-kg", ["ada", "rex"]), ("--sort=name", ["ada", "rex"])],
)
def test_sort_compares_values_not_their_text(sort, names):
    assert render_list(VIEW, [ADA, REX], style(sort, "-o", "name")).split() == names
    assert [
        dog["name"] for dog in json.loads(render_list(VIEW, [ADA, REX], style(sort, "-o", "json")))
    ] == names


@pytest.mark.parametrize(
    "argv", [["-c", "nmae"], ["--sort", "weight"], ["-c", "name", "-o", "json"], ["-c", "kg,"]]
)
def test_what_cannot_be_printed_is_refused(argv):
    with pytest.raises(Malformed):
        style(*argv)


def test_one_item_is_a_list_of_all_its_fields():
    assert render_one(VIEW, ADA, style()) == "name  ada\nkg    30\ntoys  1\n"


def test_formats_for_programs_have_every_field():
    assert json.loads(render_one(VIEW, ADA, style("-o", "json"))) == {
        "name": "ada", "kg": 30, "toys": {"ball": "red"},
    }  # fmt: skip
    assert render_one(VIEW, ADA, style("-o", "yaml")) == "name: ada\nkg: 30\ntoys:\n  ball: red\n"
    assert render_one(VIEW, ADA, style("-o", "name")) == "ada\n"


def test_colour_does_not_disturb_alignment():
    plain = table(VIEW.columns, [REX, ADA])
    coloured = table(VIEW.columns, [REX, ADA], colour=True)
    assert "\x1b[32mrex\x1b[0m   9" in coloured
    for code in ("\x1b[32m", "\x1b[1m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain


def test_a_cell_cannot_command_the_terminal():
    evil = Dog("a\x1b[2J\nb\x9b", 1)
    row = table(VIEW.columns[:1], [evil], header=False)
    assert row == "a\\u001b[2J\\nb\\u009b\n"


def test_wide_characters_take_two_columns():
    assert table(VIEW.columns[:2], [Dog("犬", 1), Dog("rex", 2)], header=False) == "犬   1\nrex  2\n"
    assert width_of("e\u0301") == 1


def printed(style: Style[Dog], *dogs: Dog, several: bool) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        results = Results(VIEW, style, several=several)
        for dog in dogs:
            results.add(dog)
        results.close()
    return out.getvalue()


def test_results_one_by_one_have_one_header():
    assert printed(Style(), REX, ADA, several=True) == "NAME  KG\nrex   9\nada   30\n"


@pytest.mark.parametrize("dogs", [(), (REX,), (REX, ADA)])
def test_several_results_are_one_array_however_many_succeeded(dogs):
    text = printed(Style(format="json"), *dogs, several=True)
    assert json.loads(text) == [msgspec.to_builtins(dog) for dog in dogs]


def test_one_result_is_one_object():
    assert json.loads(printed(Style(format="json"), REX, several=False))["name"] == "rex"
    assert printed(Style(format="json"), several=False) == ""


def test_results_in_yaml_and_as_names_add_up_to_a_list():
    assert printed(Style(format="yaml"), REX, ADA, several=True) == (
        "- name: rex\n  kg: 9\n  toys: {}\n- name: ada\n  kg: 30\n  toys:\n    ball: red\n"
    )
    assert printed(Style(format="name"), REX, ADA, several=True) == "rex\nada\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0.4, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86400 * 9, "9d")],
)
def test_age_is_in_its_largest_unit(seconds, text):
    assert age(seconds) == text


def test_addresses_are_ordered_by_number():
    assert sorted(["10.0.0.10", "10.0.0.9", "9.255.0.0"], key=ip_key) == [
        "9.255.0.0",
        "10.0.0.9",
        "10.0.0.10",
    ]


@given(st.text())
def test_what_is_printable_is_one_line_without_commands(text):
    assert printable(text).isprintable()


def test_no_colour_means_no_escape():
    assert painted("x", "31", False) == painted("x", "", True) == "x"


def test_on_a_terminal_a_long_field_goes_on_in_the_next_line_and_words_stay_whole():
    view = View(
        name=str, columns=(Column("digest", lambda _: "f" * 64), Column("caps", lambda _: "one, two, " * 5))
    )
    style = Style(width=40)
    assert render_one(view, "x", style).splitlines() == [
        f"digest  {'f' * 64}",
        "caps    one, two, one, two, one, two,",
        "        one, two, one, two,",
    ]


def test_a_table_that_wraps_leaves_nothing_out():
    view = View(
        name=str, wraps=True, columns=(Column("name", str), Column("found", lambda _: "some words " * 5))
    )
    assert render_list(view, ["x"], Style(width=30)).splitlines() == [
        "NAME  FOUND",
        "x     some words some words",
        "      some words some words",
        "      some words",
    ]
