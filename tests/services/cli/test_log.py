"""`atoll vm log -f` as a process."""

from __future__ import annotations

import subprocess
from typing import Any


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
