"""What is asked of each version of Landlock: all that it knows, and nothing that it would refuse to hear."""

from __future__ import annotations

import pytest

from atoll.system import landlock
from atoll.system.landlock import rules_of


@pytest.mark.parametrize(
    ("abi", "files", "network", "scoped"),
    [
        (1, 0x1FFF, 0, 0),
        (2, 0x3FFF, 0, 0),
        (3, 0x7FFF, 0, 0),
        (4, 0x7FFF, 3, 0),
        (5, 0xFFFF, 3, 0),
        (6, 0xFFFF, 3, 3),
        (7, 0xFFFF, 3, 3),
        (99, 0xFFFF, 3, 3),
    ],
)
def test_each_version_is_asked_for_all_that_it_knows(abi: int, files: int, network: int, scoped: int) -> None:
    rules = rules_of(abi)
    assert (rules.files, rules.network, rules.scoped) == (files, network, scoped)
    assert len(rules.packed()) == 24


def test_a_kernel_without_it_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    monkeypatch.setattr(landlock.libc, "syscall", lambda *_: pytest.fail("a call was made"))

    landlock.restrict([landlock.Grant(0, landlock.READ_FILE)])
