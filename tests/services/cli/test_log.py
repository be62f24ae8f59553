"""`atoll vm log -f` as a process."""

from __future__ import annotations

import subprocess
from typing import Any


def test_following_tells_how_many_bytes_are_gone_and_repeats_none(cloud: Any) -> None:
    vm = cloud.node.make("web")
    cloud.node.logs["web"] = b"one\n"
    process = cloud.start("vm", "log", "-f", "web", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"one\n"
        # The guest wrote a lot, and the front of it was given back.
        cloud.node.log_gone["web"] = 5004
        cloud.node.logs["web"] = b"last\n"
        assert process.stdout.readline() == b"last\n"
        cloud.node.log_gone["web"] += 5
        cloud.node.logs["web"] = b"and more\n"
        assert process.stdout.readline() == b"and more\n"
        del cloud.node.vms[vm.ip]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == "… 5,000 bytes are gone …\nweb: gone\n"


def test_following_prints_what_is_new_once_and_ends_with_the_vm(cloud: Any) -> None:
    vm = cloud.node.make("web")
    cloud.node.logs["web"] = b"booting\n"
    process = cloud.start("vm", "log", "-f", "web", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"booting\n"
        cloud.node.logs["web"] += b"login:\n"
        assert process.stdout.readline() == b"login:\n"
        cloud.node.logs["web"] = b"again\n"
        assert process.stdout.readline() == b"again\n"
        del cloud.node.vms[vm.ip]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, b"", b"web: gone\n")
