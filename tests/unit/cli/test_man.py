from __future__ import annotations

import re

import pytest

from atoll.cli.arguments import add_noun, add_verb, top_parser
from atoll.cli.main import NOUNS, parser_for
from atoll.cli.man import pages, write_pages

PAGES = pages(parser_for(NOUNS), NOUNS)


def page_of_dogs() -> str:
    parser, commands = top_parser()
    verbs = add_noun(commands, "dog", "Dogs: they bark.")
    bark = add_verb(
        verbs, "bark", lambda options: None, summary="Bark. Loud.", example="atoll dog bark -- '.x'"
    )
    bark.add_argument("--how", choices=["loud", "low"], help=".x \\ 100%% of it…")
    bark.add_argument("rest", nargs="+", metavar="WORD")
    return pages(parser, {})["atoll-dog-bark"]


def test_every_noun_and_verb_has_a_page():
    assert {"atoll", "atoll-vm", "atoll-vm-create", "atoll-up"} <= set(PAGES)
    assert {f"atoll-{noun}" for noun in NOUNS} <= set(PAGES)


def test_a_page_has_what_the_help_has():
    page = page_of_dogs()
    assert "\natoll\\-dog\\-bark \\- bark\n" in page
    assert "\\fBatoll dog bark\\fR [\\fIoptions\\fR] \\fIWORD\\fR ...\n" in page
    assert "\n\\fB\\-\\-how\\fR \\fIHOW\\fR\n\\&.x \\e 100% of it\\[u2026]; one of loud, low\n" in page
    assert "\natoll dog bark \\-\\- \\(aq.x\\(aq\n" in page


@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_taken_for_a_command_of_roff(name: str):
    page = PAGES[name]
    assert page.isascii()
    known = [".TH", ".nh", ".ad", ".SH", ".TP", ".EX", ".EE", ".PP"]
    assert {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")} <= set(known)
    assert [part for part in re.findall(r"\\(.)", page) if part not in "fe-([&"] == []


def test_pages_of_commands_that_are_no_more_go(tmp_path):
    (tmp_path / "atoll-gone.1").write_text("")
    (tmp_path / "other.1").write_text("")
    assert write_pages(tmp_path / "new" / "man1") == write_pages(tmp_path) == len(PAGES)
    assert not (tmp_path / "atoll-gone.1").exists()
    assert (tmp_path / "other.1").exists()
