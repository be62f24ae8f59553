from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.guestnet.netboot.library import KERNEL, Client, Content, Library, Missing
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot

MINE = Client("10.1.0.5", "52:54:0a:01:00:05", "tiny")
OTHER = Client("10.1.0.6", "52:54:0a:01:00:06")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tftp"
    for name in ("netboot", MINE.mac, MINE.ip, OTHER.mac):
        (folder / name).mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def library(folder: Path, tmp_path: Path) -> Library:
    images = ImageStore(tmp_path / "images")
    (tmp_path / "k").write_bytes(b"kernel")
    (tmp_path / "b").write_bytes(b"bzimage")
    images.add(
        "tiny",
        kinds=("qemu",),
        boot=DirectBoot("k", "k", "quiet", loader_kernel="b"),
        files={"k": tmp_path / "k", "b": tmp_path / "b"},
    )
    return Library(folder, images)


def read(library: Library, name: str, client: Client = MINE) -> bytes | Missing:
    content = library.open(client, name)
    if isinstance(content, Missing):
        return content
    try:
        return content.read(0, content.size)
    finally:
        content.close()


def test_a_machine_gets_its_own_file_then_that_of_its_address_then_that_of_all(
    library: Library, folder: Path
) -> None:
    (folder / "netboot" / "f").write_text("all")
    assert read(library, "f") == b"all"
    (folder / MINE.ip / "f").write_text("address")
    assert read(library, "/f") == b"address"
    (folder / MINE.mac / "f").write_text("own")
    assert read(library, "f") == b"own"
    assert read(library, "f", OTHER) == b"all"


def test_a_stranger_gets_nothing(library: Library, folder: Path) -> None:
    (folder / "netboot" / "f").write_text("all")
    assert library.open(None, "f") is Missing.STRANGER


def test_a_machine_cannot_read_what_is_another_ones(library: Library, folder: Path) -> None:
    (folder / OTHER.mac / "f").write_text("other")
    for name in ("f", f"{OTHER.mac}/f", f"/{OTHER.mac}/f", f"../{OTHER.mac}/f"):
        assert read(library, name) in (Missing.NOT_THERE, Missing.BAD_NAME)


def test_a_link_leads_to_another_folder_and_not_out_of_them(
    library: Library, folder: Path, tmp_path: Path
) -> None:
    (folder / "netboot" / "f").write_text("all")
    (folder / MINE.mac / "inside").symlink_to("../netboot/f")
    (folder / MINE.mac / "outside").symlink_to(tmp_path / "secret")
    (folder / MINE.mac / "up").symlink_to("../..")
    (folder / MINE.mac / "round").symlink_to("round")
    assert read(library, "inside") == b"all"
    assert read(library, "outside") is Missing.NOT_THERE
    assert read(library, "up/secret") is Missing.NOT_THERE
    assert read(library, "round") is Missing.NOT_THERE


def test_what_is_not_a_file_is_not_there(library: Library, folder: Path) -> None:
    os.mkfifo(folder / "netboot" / "pipe")
    (folder / "netboot" / "dir").mkdir()
    assert read(library, "pipe") is Missing.NOT_THERE
    assert read(library, "dir") is Missing.NOT_THERE


def test_the_image_of_a_machine_boots_where_no_folder_says_otherwise(library: Library, folder: Path) -> None:
    assert b"image/kernel" in bytes(read(library, "boot.ipxe"))  # type: ignore[arg-type]
    assert read(library, "image/kernel") == b"bzimage"
    assert read(library, "image/initrd") == b"kernel"
    (folder / MINE.mac / "boot.ipxe").write_text("#!ipxe\nexit\n")
    assert read(library, "boot.ipxe") == b"#!ipxe\nexit\n"


def test_a_machine_without_an_image_has_no_script(library: Library) -> None:
    assert read(library, "boot.ipxe", OTHER) is Missing.NOT_THERE


def test_bytes_are_read_from_anywhere() -> None:
    content = Content(b"0123456789")
    assert (content.size, content.read(8, 5)) == (10, b"89")


def test_a_vm_boots_the_image_that_it_was_made_of_and_other_machines_the_newest(
    folder: Path, tmp_path: Path
) -> None:
    images, made = ImageStore(tmp_path / "images"), []
    for content in (b"old", b"new"):
        (tmp_path / "k").write_bytes(content)
        made.append(
            images.add("tiny", kinds=("qemu",), boot=DirectBoot("k", "k"), files={"k": tmp_path / "k"})
        )
    vm = Client("10.1.0.7", "52:54:0a:01:00:07", "tiny", made[0].digest)
    library = Library(folder, images)
    assert (read(library, KERNEL, vm), read(library, KERNEL)) == (b"old", b"new")
