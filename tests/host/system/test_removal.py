"""Trees as guests leave them, removed from real file systems."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import HostFailure
from atoll.system import aside, files, removal


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


def nest(tree: Path, depth: int) -> None:
    """So many directories in one another, further down than any path can say."""
    directory = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("deeper", dir_fd=directory)
        inner = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(directory)
        directory = inner
    os.close(directory)


def test_a_tree_of_any_depth_is_removed_with_few_open_files(tree: Path):
    nest(tree, 5000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 64, limits[1]))
    try:
        files.remove_tree(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not tree.exists()


def test_a_hundred_thousand_names_are_removed_in_bounded_time(tree: Path):
    for number in range(100):
        directory = tree / f"{number % 10}" / f"{number}"
        directory.mkdir(parents=True)
        opened = os.open(directory, os.O_RDONLY)
        os.mknod("file", dir_fd=opened)
        for name in range(999):
            os.link("file", f"{name}", src_dir_fd=opened, dst_dir_fd=opened)
        os.close(opened)
    began = time.monotonic()
    files.remove_tree(tree)
    assert time.monotonic() - began < 60
    assert not tree.exists()


def test_a_name_may_have_every_byte_in_it(tree: Path):
    for byte in set(range(1, 256)) - {ord("/")}:
        os.mkdir(os.fsencode(tree) + b"/d" + bytes([byte]))
        os.mknod(os.fsencode(tree) + b"/d" + bytes([byte]) + b"/" + bytes([byte]) + b"f" * 254)
    files.remove_tree(tree)
    assert not tree.exists()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=40), st.sampled_from("dfl")), max_size=30)
)
def test_whatever_is_in_a_tree_goes_and_what_links_lead_to_stays(
    tmp_path: Path, things: list[tuple[list[str], str]]
):
    kept = tmp_path / "outside" / "kept"
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    for names, kind in things:
        directory = tree.joinpath(*names)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            match kind:
                case "f":
                    (directory / "file").touch()
                case "l":
                    (directory / "link").symlink_to(kept.parent)
                    (directory / "dangling").symlink_to("/nowhere")
        except FileExistsError:
            continue
    files.remove_tree(tree)
    assert not tree.exists()
    assert kept.exists()


@pytest.fixture
def mounted(tree: Path) -> Iterator[Path]:
    place = tree / "a" / "b" / "mounted"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    (place / "theirs").touch()
    yield place
    subprocess.run(["umount", place], check=True)


def test_what_is_mounted_in_a_tree_is_left_alone_and_the_rest_goes(tree: Path, mounted: Path):
    (tree / "a" / "ours").touch()
    (tree / "z").touch()
    with pytest.raises(HostFailure, match=f"removing {mounted}: Device or resource busy") as failure:
        files.remove_tree(tree)
    assert "unmount it first" in failure.value.hint
    assert (mounted / "theirs").exists()
    assert sorted(path.name for path in tree.rglob("*")) == ["a", "b", "mounted", "theirs"]


def test_a_directory_of_the_same_file_system_that_is_mounted_in_a_tree_is_left_alone(
    tmp_path: Path, tree: Path
):
    """Its device number does not tell it from the rest."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tree / "here").mkdir()
    subprocess.run(["mount", "--bind", tmp_path / "elsewhere", tree / "here"], check=True)
    try:
        with pytest.raises(HostFailure, match="Device or resource busy"):
            files.remove_tree(tree)
    finally:
        subprocess.run(["umount", tree / "here"], check=True)
    assert (tmp_path / "elsewhere" / "kept").exists()


def protect(path: Path, attribute: str) -> None:
    if subprocess.run(["chattr", f"+{attribute}", path]).returncode:
        pytest.skip("this file system has no such attributes")


@pytest.mark.parametrize("attribute", ["i", "a"])
def test_a_file_that_may_not_be_removed_is_named_and_the_rest_goes(tree: Path, attribute: str):
    stuck = tree / "in" / "stuck\n\udcff"
    stuck.parent.mkdir()
    stuck.touch()
    (tree / "other").touch()
    protect(stuck, attribute)
    # Without the right to change such attributes.
    program = """
import sys
from pathlib import Path
from atoll.errors import HostFailure
from atoll.system import files
try:
    files.remove_tree(Path(sys.argv[1]))
except HostFailure as failure:
    print(failure.brief, failure.hint, sep="\\n", end="")
"""
    dropped = ["setpriv", "--bounding-set=-linux_immutable", "--inh-caps=-linux_immutable", "--"]
    ran = subprocess.run([*dropped, sys.executable, "-c", program, tree], capture_output=True, text=True)
    brief, _, hint = ran.stdout.partition("\n")
    assert brief.endswith(r"in/stuck\n\udcff: Operation not permitted"), ran
    assert "chattr" in hint
    assert list(tree.rglob("*")) == [stuck.parent, stuck]
    files.remove_tree(tree)
    assert not tree.exists()


@pytest.mark.parametrize("attribute", ["i", "a"])
def test_what_was_made_immutable_is_removed_at_any_depth(tree: Path, attribute: str):
    nest(tree, 40)
    deep, path = [], tree
    for _ in range(40):
        path = path / "deeper"
        deep += [path / "file", path]
    for one in (*deep, tree):
        protect(one, attribute)
    files.remove_tree(tree)
    assert not tree.exists()


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that any user can get to."""
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as base:
        os.chmod(base, 0o755)
        yield Path(base) / "home"


def test_a_user_removes_what_is_theirs_whatever_its_modes(home: Path):
    deep = home / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    for path in (home, home / "tree", deep.parent, deep, deep / "file"):
        os.chown(path, 12345, 12345)
    for path in (deep, deep.parent, home / "tree"):
        path.chmod(0)
    script = "from atoll.system import files; from pathlib import Path; import os, sys; os.setuid(12345)\n"
    script += "files.remove_tree(Path(sys.argv[1]))"
    # Loaded while it is still root: the user need not be able to read our code.
    subprocess.run([sys.executable, "-c", script, home / "tree"], check=True, cwd="/")
    assert list(home.iterdir()) == []


def test_a_tree_into_which_somebody_writes_meanwhile_is_removed(tree: Path):
    over = threading.Event()

    def write() -> None:
        for number in range(5000):
            try:
                (tree / f"d{number % 7}").mkdir(exist_ok=True)
                (tree / f"d{number % 7}" / f"{number}").touch()
            except FileNotFoundError:
                break
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        files.remove_tree(tree)
    writer.join()
    files.remove_tree(tree)
    assert not tree.exists()


def test_a_removal_that_is_told_to_stop_leaves_the_rest_for_the_next(tree: Path):
    for number in range(10):
        (tree / f"{number}").touch()
    asked = iter([False] * 5 + [True])
    with pytest.raises(removal.Stopped):
        files.remove_tree(tree, lambda: next(asked))
    assert 0 < len(list(tree.iterdir())) < 10
    files.remove_tree(tree)
    assert not tree.exists()


async def test_the_loop_goes_on_while_a_tree_is_removed(tree: Path):
    for number in range(5000):
        os.mknod(tree / f"{number}")
    removing = asyncio.create_task(aside.remove_tree(tree))
    turns = 0
    while not removing.done():
        await asyncio.sleep(0.001)
        turns += 1
    await removing
    assert turns > 5
    assert not tree.exists()


async def test_a_removal_that_is_cancelled_is_over_when_its_caller_goes_on(tree: Path):
    for number in range(20_000):
        os.mknod(tree / f"{number}")
    removing = asyncio.create_task(aside.remove_tree(tree))
    await asyncio.sleep(0.01)
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    left = len(os.listdir(tree))
    await asyncio.sleep(0.05)
    assert len(os.listdir(tree)) == left > 0
