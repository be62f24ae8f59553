"""This very machine."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta

import pytest

from atoll.system import clock, host


def test_the_host_is_described_as_its_tools_do() -> None:
    assert host.kernel() == subprocess.check_output(["uname", "-r"], text=True).strip()
    assert host.cores() == int(subprocess.check_output(["nproc"]))
    total, available = host.memory_mib()
    assert total == int(subprocess.check_output(["free", "-m"]).split()[7])
    assert 0 < available <= total
    assert len(host.boot_id()) == 36


def test_tools_of_administrators_are_found_even_with_a_poor_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = host.find_tool("nft")
    assert found is not None
    assert os.access(found, os.X_OK)
    assert host.find_tool("no-such-tool") is None


def test_the_time_is_in_utc_and_the_monotonic_clock_moves_on() -> None:
    assert clock.now().utcoffset() == timedelta(0)
    before = clock.monotonic()
    assert clock.monotonic() >= before
