"""The reference page is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from atoll.api import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


def test_the_reference_of_the_api_is_up_to_date():
    assert PAGE.read_text() == reference.page(), "write it anew with: make reference"
