"""Who is killed at any named step of putting objects or unpacking a tree leaves what is whole, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.images.objects import hashed, open_objects
from atoll.images.trees.scanning import scan
from atoll.images.trees.unpacking import remove_parts
from fault_schedules import OF_IMAGES

STORY = """
import sys
from pathlib import Path
from atoll.images.objects import Intake, open_objects
from atoll.images.trees.scanning import scan
from atoll.images.trees.unpacking import unpack
base = Path(sys.argv[1])
objects = open_objects(base / "objects")
with Intake(objects) as intake:
    tree = scan(base / "root", intake.take)
unpack(tree, objects.get_many, base / "tree")
objects.remove([kept.id for kept in objects.list()])
"""
MANY = 30


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "root/etc").mkdir(parents=True)
    for number in range(MANY):
        (tmp_path / f"root/etc/{number}").write_bytes(os.urandom(1000))
    return tmp_path


def run(base: Path, fault: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", STORY, base], env=os.environ | {"ATOLL_FAULT": fault}, timeout=120
    )
    return done.returncode


@pytest.mark.parametrize(
    ("step", "times"), [*((step, 1) for step in sorted(OF_IMAGES)), ("bulk.named", 9), ("tree.entry", 9)]
)
def test_whoever_is_killed_leaves_whole_objects_and_whole_trees(base: Path, step: str, times: int) -> None:
    assert run(base, f"{step}:{times}") == -signal.SIGKILL
    wanted = scan(base / "root", hashed)
    objects = open_objects(base / "objects")
    there = [kept.id for kept in objects.list()]
    assert list(objects.damaged(there)) == []
    assert list((base / "objects/.incoming").iterdir()) == []
    if step == "bulk.named":
        assert len(there) == times
    elif step.startswith("bulk.") and step != "bulk.done":
        assert there == []
    if (base / "tree").exists():
        assert scan(base / "tree", hashed) == wanted
        assert step in ("tree.named", "object.removed")
    objects.close()
    remove_parts(base)
    if not (base / "tree").exists():
        assert run(base) == 0
        assert scan(base / "tree", hashed) == wanted
    assert {one.name for one in base.iterdir()} == {"root", "objects", "tree"}
