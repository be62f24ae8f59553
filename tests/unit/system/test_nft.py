"""What nft says, in one line."""

from __future__ import annotations

import pytest

from atoll.system.nft import complaint


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "internal:0:0-0: Error: Could not process rule: No such file or directory\n",
            "Could not process rule: No such file or directory",
        ),
        (
            "internal:0:0-0: Error: Unknown object passed to add command.\n\n"
            "internal:0:0-0: Error: Parsing command array at index 0 failed.\n",
            "Unknown object passed to add command.",
        ),
        ("netlink: cannot open socket\n", "netlink: cannot open socket"),
        ("", "it said nothing"),
    ],
)
def test_the_first_error_is_the_complaint(said: str, line: str) -> None:
    assert complaint(said) == line
