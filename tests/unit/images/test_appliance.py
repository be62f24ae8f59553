from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.images import appliance, cpio, packages


def test_the_module_list_names_the_files_in_load_order() -> None:
    entries = {
        entry.path: entry
        for entry in appliance.root_files(
            b"agent",
            b"busybox",
            ["ls", "cat"],
            {"virtio": b"1", "button": b"2"},
            {"fuse": b"3", "virtiofs": b"4"},
        )
    }
    assert entries["lib/modules/load-folders"].data == b"/lib/modules/fuse.ko\n/lib/modules/virtiofs.ko\n"
    assert entries["lib/modules/virtiofs.ko"].data == b"4"
    assert entries["lib/modules/load"].data == b"/lib/modules/virtio.ko\n/lib/modules/button.ko\n"
    assert entries["lib/modules/button.ko"].data == b"2"
    assert entries["lib/applets"].data == b"cat\nls\n"
    assert stat.S_IMODE(entries["init"].mode) == 0o755
    assert entries["bin/sh"].data == b"busybox"


def test_the_root_makes_an_archive() -> None:
    root = appliance.root_files(b"agent", b"busybox", ["ls"], {"virtio": b"1"}, {})
    assert cpio.archive(root) == cpio.archive(reversed(root))


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=5), min_size=1), st.binary(max_size=5))
def test_the_recipe_changes_with_every_input(sources: dict[str, bytes], busybox: bytes) -> None:
    recipe = appliance.recipe(sources, busybox)
    assert recipe == appliance.recipe(dict(reversed(sources.items())), busybox)
    assert recipe != appliance.recipe(sources, busybox + b"x")
    for name, source in sources.items():
        assert recipe != appliance.recipe({**sources, name: source + b"x"}, busybox)


def test_the_kernel_behind_the_meta_package_is_found() -> None:
    said = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-54-cloud-amd64\n  Suggests: other\n"
    assert packages.parse_depends(said) == "linux-image-6.1.0-54-cloud-amd64"
    assert packages.parse_depends("N: Unable to locate package\n") is None


HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize("file", ["../evil.deb", "other_1_amd64.deb", "linux-image-6.1_1_amd64.deb/x"])
def test_a_file_that_is_no_kernel_package_is_not_taken(file: str) -> None:
    assert packages.parse_uris(f"'http://host/pool/x' {file} 12 SHA256:{HASH}\n") is None


@pytest.mark.parametrize("end", ["", " SHA256:00", f" MD5Sum:{HASH}"])
def test_a_file_of_which_apt_knows_no_good_hash_is_not_taken(end: str) -> None:
    assert packages.parse_uris(f"'http://host/x' linux-image-6.1_1_amd64.deb 12{end}\n") is None


def test_the_file_that_apt_would_download_is_found() -> None:
    file = "linux-image-6.1.0-54-cloud-amd64_6.1.190-1_amd64.deb"
    said = f"'http://host/pool/main/l/{file}' {file} 26639112 SHA256:{HASH}\n"
    assert packages.parse_uris(said) == packages.Offer(file, HASH)


def test_versions_order_by_number() -> None:
    older, newer = (f"linux-image-6.1.0-{n}-cloud-amd64_6.1.{p}-1_amd64.deb" for n, p in ((9, 27), (54, 190)))
    assert packages.version_key(older) < packages.version_key(newer)
