"""The exit statuses in the code, in the help and on the page are the same."""

from __future__ import annotations

import re
from pathlib import Path

from atoll.cli.arguments import help_text
from atoll.cli.failure import BROKEN_PIPE, INTERRUPTED
from atoll.cli.several import IN_PART
from atoll.errors import AtollError

PAGE = Path(__file__).parents[3] / "docs" / "command.md"


def kinds(root: type[AtollError] = AtollError) -> list[type[AtollError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


IN_CODE = {0, INTERRUPTED, BROKEN_PIPE, IN_PART, *(kind.exit_status for kind in kinds())}


def test_the_page_has_every_exit_status_and_no_other():
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)]
    assert rows == sorted(IN_CODE)


def test_help_has_them_too():
    (text,) = re.findall(r"exit status: (.*?)\n\n", help_text({}), re.DOTALL)
    told = {int(number) for number in re.findall(r"(?:^|,)\s*(\d+) ", text)}
    assert told == IN_CODE - {BROKEN_PIPE}


def test_what_can_be_told_apart_has_a_status_of_its_own():
    """Errors share one only where a script would do the same about them."""
    by_status: dict[int, set[str]] = {}
    for kind in kinds():
        by_status.setdefault(kind.exit_status, set()).add(kind.code)
    shared = {status: codes for status, codes in by_status.items() if len(codes) > 1}
    assert shared == {
        1: {"internal", "host_failure"},
        2: {"invalid", "malformed", "too_large"},
        5: {"unauthenticated", "denied"},
        6: {"no_capacity", "over_quota", "pool_empty"},
    }
