from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.install import unit

TEXT = unit.text(Path("/opt/atoll venv/bin/python"), Path("/etc/atoll/node.toml"))
SETTINGS = dict(line.split("=", 1) for line in TEXT.splitlines() if "=" in line and not line.startswith("#"))


def test_it_starts_the_agent_of_this_program_with_its_configuration():
    assert SETTINGS["ExecStart"] == '"/opt/atoll venv/bin/python" -m atoll.hypervisor /etc/atoll/node.toml'


def test_vms_outlive_it_and_it_is_always_started_again():
    assert (SETTINGS["KillMode"], SETTINGS["Restart"], SETTINGS["StartLimitIntervalSec"]) == (
        "process",
        "always",
        "0",
    )


def test_nothing_in_it_gives_the_agent_mounts_of_its_own_or_filters_what_guests_may_call():
    """Either would break machines: their namespaces would be invisible, their system calls filtered."""
    unfit = (
        "Private",
        "Protect",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "Bind",
        "Mount",
        "Root",
        "Temporary",
    )
    assert not [
        name
        for name in SETTINGS
        if name.startswith((*unfit, "SystemCall", "Restrict", "MemoryDeny", "NoNew"))
    ]


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("a b", '"a b"'),
        ("50%", "50%%"),
        ("$x", "$$x"),
        ('q"', '"q\\""'),
    ],
)
def test_a_word_is_quoted_as_systemd_reads_it(word: str, read: str) -> None:
    assert unit.quoted(word) == read
