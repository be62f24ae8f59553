from __future__ import annotations

import pytest

from atoll.drivers.machine.qemu.record import last_words


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("", ""),
        ("\n", ""),
        (
            "2026-01-31T12:00:00.000000Z qemu-system-x86_64: warning: x\n"
            "2026-01-31T12:00:00.000001Z qemu-system-x86_64: -m: too much memory\n",
            "-m: too much memory",
        ),
        ("setpriv: no such user\n", "setpriv: no such user"),
    ],
)
def test_the_last_words_of_a_qemu_are_without_time_and_name(messages: str, words: str) -> None:
    assert last_words(messages) == words
