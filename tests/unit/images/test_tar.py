"""Root file systems as tar archives."""

from __future__ import annotations

import io
import tarfile

from atoll.images import appliance, cpio, tar


def test_an_archive_holds_what_it_was_given_and_the_directories_on_the_way() -> None:
    entries = [cpio.regular_file("bin/tool", b"program", 0o755), cpio.symlink("bin/sh", "tool")]
    with tarfile.open(fileobj=io.BytesIO(tar.archive(entries))) as archive:
        members = {member.name: member for member in archive}
        content = archive.extractfile("bin/tool")
        assert content is not None
        assert content.read() == b"program"
    assert members["bin"].isdir()
    assert (members["bin/tool"].mode, members["bin/tool"].uid) == (0o755, 0)
    assert members["bin/sh"].linkname == "tool"


def test_the_same_entries_give_the_same_bytes() -> None:
    entries = [cpio.regular_file("b", b"2"), cpio.regular_file("a", b"1"), cpio.directory("tmp", 0o1777)]
    assert tar.archive(entries) == tar.archive(reversed(entries))


def test_the_root_of_a_container_has_all_tools_an_init_where_engines_look_and_no_modules() -> None:
    root = {entry.path: entry for entry in appliance.container_files(b"agent", b"busybox", ["ls", "busybox"])}
    assert root["bin/ls"].data == root["bin/sh"].data == b"busybox"
    assert root["sbin/init"].data == b"../init"
    assert root["init"].data == b"agent"
    assert root["tmp"].mode & 0o7777 == 0o1777
    assert not any(path.startswith("lib/modules") for path in root)
