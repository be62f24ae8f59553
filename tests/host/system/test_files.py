"""Real files, locks and Unix sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.errors import Conflict, HostFailure, TooLarge
from atoll.system import files
from atoll.system.failures import failing


def test_a_file_is_replaced_with_its_mode_and_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "vm.json"
    files.write_durably(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    files.write_durably(path, b"two", mode=0o666)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o666
    assert os.listdir(tmp_path) == ["vm.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "inside").touch()
    with pytest.raises(HostFailure, match=r"^writing .*/there: "):
        files.write_durably(tmp_path / "there", b"data")
    assert os.listdir(tmp_path) == ["there"]


def test_a_file_that_is_made_once_is_whole_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    files.write_once(path, b"one")
    files.write_once(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_nlink) == (b"one", 0o600, 1)
    assert os.listdir(tmp_path) == ["secrets.key"]
    with pytest.raises(HostFailure, match=r"^writing .*/nowhere/key: "):
        files.write_once(tmp_path / "nowhere" / "key", b"three")


def test_a_full_disk_is_told_as_such() -> None:
    with pytest.raises(HostFailure, match="No space left on device") as failure, failing("writing x"):
        Path("/dev/full").write_bytes(b"data")
    assert failure.value.hint == "make room on that file system"


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from atoll.system import files;"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL);"
        "files.write_durably(Path(sys.argv[1]), b'half')"
    )
    path = tmp_path / "vm.json"
    path.write_bytes(b"whole")
    killed = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    files.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["vm.json"]
    assert path.read_bytes() == b"whole"


def test_directories_are_made_with_their_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.make_dirs(tmp_path / "a" / "b", 0o711)
        files.make_dirs(tmp_path / "a" / "b", 0o700)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o711, 0o711]


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HostFailure, match="making directory"):
            files.make_dirs(path)


def test_a_file_up_to_the_limit_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"12345")
    assert files.read_limited(path, 5) == b"12345"
    with pytest.raises(TooLarge, match="longer than 4 bytes"):
        files.read_limited(path, 4)
    with pytest.raises(FileNotFoundError):
        files.read_limited(tmp_path / "none", 4)


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    (tree / "link").symlink_to(tmp_path / "outside")
    files.remove_tree(tree)
    files.remove_tree(tree)
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    files.remove_tree(tmp_path / "top")
    (tmp_path / "file").touch()
    files.remove_tree(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "outside"]


def test_space_is_counted_in_mib(tmp_path: Path) -> None:
    assert 0 < files.free_mib(tmp_path) <= files.total_mib(tmp_path)


def deep(tmp_path: Path) -> Path:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    return directory / "monitor.sock"


async def test_a_socket_works_at_a_path_that_is_too_long_for_an_address(tmp_path: Path) -> None:
    path = deep(tmp_path)
    with files.listen_unix(path, mode=0o660) as listener:
        assert path.stat().st_mode & 0o777 == 0o660

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_unix_server(echo, sock=listener):
            reader, writer = await files.connect_unix(path)
            writer.write(b"hello\n")
            assert await reader.read() == b"hello\n"
            writer.close()
            await writer.wait_closed()


async def test_a_dead_socket_is_replaced_a_live_one_and_a_file_are_not(tmp_path: Path) -> None:
    path = tmp_path / "monitor.sock"
    files.listen_unix(path).close()
    with pytest.raises(ConnectionRefusedError):
        await files.connect_unix(path)
    with files.listen_unix(path):
        with pytest.raises(Conflict, match="somebody listens"):
            files.listen_unix(path)
        (await files.unix_socket(path)).close()
    (tmp_path / "file").touch()
    with pytest.raises(Conflict, match="not a socket"):
        files.listen_unix(tmp_path / "file")


async def test_connecting_to_nothing_is_an_os_error_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        await files.connect_unix(tmp_path / "none.sock")
    with pytest.raises(HostFailure, match="listening on"):
        files.listen_unix(tmp_path / "no-directory" / "none.sock")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_listening_socket_is_not_inherited(tmp_path: Path) -> None:
    with files.listen_unix(tmp_path / "a.sock") as listener:
        assert isinstance(listener, socket.socket)
        assert not listener.get_inheritable()
