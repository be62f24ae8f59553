"""Hooks, as an operator uses them: a file of commands, and each VM's coming and going told once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

# One line each; while there is a file called `down`, it fails.
HOOK = """#!/bin/sh
cd "$(dirname "$0")"
test ! -e down || exit 1
cat >> told
"""


def test_a_command_is_told_of_each_vm_once_whatever_happens_to_it_and_to_the_agent(
    images: Path, making_cloud: Any
) -> None:
    with making_cloud(images) as cloud:
        place = cloud.directory.parent / "hook"
        place.mkdir()
        place.chmod(0o777)
        (place / "hook").write_text(HOOK)
        (place / "hook").chmod(0o755)
        (place / "hooks.json").write_text(json.dumps([{"command": [str(place / "hook")]}]))
        told = place / "told"

        def notices() -> list[tuple[str, str, str]]:
            lines = told.read_text().splitlines() if told.exists() else []
            return [(one["event"], one["vm"]["name"], one["vm"]["ip"]) for one in map(json.loads, lines)]

        def until(*wanted: tuple[str, str, str]) -> None:
            deadline = time.monotonic() + 30
            while notices() != list(wanted):
                assert time.monotonic() < deadline, f"told: {notices()}"
                time.sleep(0.1)

        cloud("up", "--hooks", str(place / "hooks.json"))
        web = cloud.create("web", "--driver", "lxc", "--tag", "tier=front")["ip"]
        until(("created", "web", web))

        # Down: creates go on, and what came and went meanwhile is nobody's business.
        (place / "down").touch()
        db = cloud.create("db", "--driver", "lxc")["ip"]
        cloud.create("passing", "--driver", "lxc")
        cloud.destroy("web", "passing")
        cloud.kill_agent()
        (place / "down").unlink()
        cloud("up")
        until(("created", "web", web), ("destroyed", "web", web), ("created", "db", db))
        refused = cloud.refused("up", "--hooks", str(place / "hook"))
        assert "reading hooks in" in refused.brief


def test_a_failing_hook_delays_no_create(images: Path, making_cloud: Any) -> None:
    with making_cloud(images) as cloud:
        hooks = cloud.directory.parent / "hooks.json"
        hooks.write_text(json.dumps([{"command": ["/bin/sleep", "1000"], "timeout_s": 300}]))
        cloud("up", "--hooks", str(hooks))
        for name in ("first", "second"):
            assert cloud.create(name, "--driver", "lxc")["ready"]["started"] < 10
