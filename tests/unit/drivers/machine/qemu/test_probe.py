from __future__ import annotations

from pathlib import Path

import pytest

from atoll.drivers.machine.qemu.probe import probe_argv, reached_end_of_boot, tsc_khz_of
from atoll.system.processes import Completed

NO_ROOT = b"[ 1.2] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\r\n"
CPUINFO = "processor\t: 0\ncpu MHz\t\t: 2596.132\nflags\t\t: fpu tsc constant_tsc nx\n"


@pytest.mark.parametrize(
    ("returncode", "stdout", "reached"),
    [
        (0, NO_ROOT, True),
        (0, b"", False),  # a triple fault restarts too
        (0, b"Kernel panic - not syncing: IO-APIC + timer doesn't work!", False),
        (-6, NO_ROOT, False),
    ],
)
def test_only_the_panic_for_want_of_a_root_shows_that_a_kernel_booted(
    returncode: int, stdout: bytes, reached: bool
) -> None:
    assert reached_end_of_boot(Completed(returncode, stdout, b"")) is reached


def test_the_probe_runs_what_guests_run() -> None:
    argv = probe_argv(Path("/k"), "kvm", binary="qemu")

    assert argv[argv.index("-machine") + 1].startswith("q35,")
    assert argv[argv.index("-cpu") + 1] == "host"
    assert "-no-reboot" in argv
    assert "-initrd" not in argv


@pytest.mark.parametrize(
    ("cpuinfo", "khz"),
    [
        (CPUINFO, 2_596_132),
        (CPUINFO.replace("constant_tsc", ""), None),
        (CPUINFO.replace("2596.132", "0.000"), None),
        ("flags\t\t: constant_tsc\n", None),
    ],
)
def test_the_frequency_of_the_counter_is_known_only_where_it_is_constant(
    cpuinfo: str, khz: int | None
) -> None:
    assert tsc_khz_of(cpuinfo) == khz
