from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.install import unit


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


PYTHON = Path("/opt/atoll venv/bin/python")
SETTINGS = settings_of(unit.text(PYTHON, Path("/etc/atoll/node.toml")))
CLOUD = settings_of(unit.of_cloud(PYTHON, Path("/srv/100% mine"), {"ATOLL_CACHE": "/var/cache/$a b"}))


def test_it_starts_the_agent_of_this_program_with_its_configuration():
    assert SETTINGS["ExecStart"] == '"/opt/atoll venv/bin/python" -m atoll.hypervisor /etc/atoll/node.toml'


def test_vms_outlive_it_and_it_is_always_started_again():
    assert (SETTINGS["KillMode"], SETTINGS["Restart"], SETTINGS["StartLimitIntervalSec"]) == (
        "process",
        "always",
        "0",
    )


def test_a_cloud_is_kept_up_in_the_foreground_until_it_is_told_to_go_down():
    assert CLOUD["ExecStart"] == (
        '"/opt/atoll venv/bin/python" -m atoll.cli --dir "/srv/100%% mine" up --foreground --quiet'
    )
    assert (CLOUD["Type"], CLOUD["Restart"], CLOUD["KillMode"]) == ("notify", "on-failure", "process")
    assert CLOUD["RequiresMountsFor"] == '"/srv/100%% mine"'
    # Nothing but a command line knows variables: a dollar stays one.
    assert CLOUD["Environment"] == '"ATOLL_CACHE=/var/cache/$a b"'


def test_both_units_confine_their_agent_alike():
    for name in ("CapabilityBoundingSet", "UMask", "LimitNOFILE", "OOMPolicy", "WantedBy"):
        assert CLOUD[name] == SETTINGS[name]


@pytest.mark.parametrize("settings", [SETTINGS, CLOUD])
def test_nothing_in_it_gives_the_agent_mounts_of_its_own_or_filters_what_guests_may_call(settings):
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
        for name in settings
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
