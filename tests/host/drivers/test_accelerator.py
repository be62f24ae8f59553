"""The accelerator probe against this host's real /dev/kvm, and against an accelerator that surely works."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from atoll.drivers.machine.qemu import probe
from atoll.errors import TimedOut
from atoll.system import host, processes

BINARY = "qemu-system-x86_64"


async def test_the_probe_sees_a_kernel_boot_where_one_does(kernel: Path) -> None:
    completed = await processes.run(probe.probe_argv(kernel, "tcg", binary=BINARY), timeout_s=60, check=False)

    assert probe.reached_end_of_boot(completed)


async def test_the_verdict_on_kvm_is_what_a_patient_guest_finds(kernel: Path) -> None:
    argv = probe.probe_argv(kernel, "kvm", binary=BINARY)
    try:
        boots = probe.reached_end_of_boot(await processes.run(argv, timeout_s=10, check=False))
    except TimedOut:
        boots = False

    began = time.monotonic()
    verdict = await probe.try_kvm(kernel, binary=BINARY, timeout_s=probe.TIMEOUT_S)

    assert verdict.accelerator == ("kvm" if boots else "tcg")
    assert verdict.reason
    assert time.monotonic() - began < probe.TIMEOUT_S + 1


async def test_an_accelerator_under_which_the_guest_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    hanging = tmp_path / "qemu"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)

    began = time.monotonic()
    verdict = await probe.try_kvm(Path("/none"), binary=str(hanging), timeout_s=0.3)

    assert verdict == probe.Verdict("tcg", "under /dev/kvm a kernel did not boot in 0.3 s")
    assert time.monotonic() - began < 2


async def test_a_verdict_is_kept_until_qemu_or_the_boot_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch(mode=0o666)
    device.chmod(0o666)
    monkeypatch.setattr(probe, "KVM", device)
    runs = tmp_path / "runs"
    fake = tmp_path / "qemu"
    fake.write_text(f"#!/bin/sh\necho run >>{runs}\necho 'VFS: Unable to mount root fs'\n")
    fake.chmod(0o755)
    cache = tmp_path / "accelerator.json"

    first = await probe.choose(Path("/none"), cache, binary=str(fake))
    again = await probe.choose(Path("/none"), cache, binary=str(fake))
    assert first.accelerator == "kvm"
    assert again == first
    assert runs.read_text().count("run") == 1

    fake.write_text(f"#!/bin/sh\necho run >>{runs}\necho 'cannot run' >&2; exit 1\n")
    replaced = await probe.choose(Path("/none"), cache, binary=str(fake))
    assert replaced == probe.Verdict("tcg", "under /dev/kvm a kernel did not boot: cannot run")

    monkeypatch.setattr(host, "boot_id", lambda: "another boot")
    await probe.choose(Path("/none"), cache, binary=str(fake))
    assert runs.read_text().count("run") == 3


async def test_a_device_that_unprivileged_users_cannot_open_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch(mode=0o600)
    monkeypatch.setattr(probe, "KVM", device)

    verdict = await probe.choose(Path("/none"), tmp_path / "cache", binary="/none")

    assert verdict == probe.Verdict("tcg", "/dev/kvm: mode 0600 keeps unprivileged users out")


async def test_a_host_without_the_device_emulates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "KVM", tmp_path / "missing")

    assert (await probe.choose(Path("/none"), tmp_path / "cache", binary="/none")).accelerator == "tcg"
