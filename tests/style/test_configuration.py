"""The page about the configuration is what the types say."""

from __future__ import annotations

from pathlib import Path

from atoll.hypervisor import settings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_about_the_configuration_is_up_to_date():
    assert PAGE.read_text() == settings.page(), "write it anew with: make reference"
