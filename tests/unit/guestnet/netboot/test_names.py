from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.netboot.names import parts_of, script_of
from atoll.model.image import DirectBoot


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("boot.ipxe", ("boot.ipxe",)),
        ("/image/kernel", ("image", "kernel")),
        ("EFI\\BOOT\\x.efi", ("EFI", "BOOT", "x.efi")),
        (".//a/./b", ("a", "b")),
    ],
)
def test_a_name_is_a_path_below_a_folder(name: str, parts: tuple[str, ...]) -> None:
    assert parts_of(name) == parts


@pytest.mark.parametrize(
    "name", ["", "/", ".", "..", "a/../b", "..\\secret", "a\nb", "a\x7f", "x" * 256, "ä" * 128, "a/" * 17]
)
def test_a_name_that_leads_elsewhere_or_nowhere_is_none(name: str) -> None:
    assert parts_of(name) is None


@given(st.text(max_size=40))
def test_no_name_has_a_part_that_climbs(name: str) -> None:
    for part in parts_of(name) or ():
        assert part not in ("", ".", "..")
        assert "/" not in part


def test_a_script_names_kernel_and_initrd_relative_to_itself() -> None:
    lines = script_of(DirectBoot("vmlinuz", "initrd", "console=ttyS0 quiet")).decode().splitlines()
    assert lines[0] == "#!ipxe"
    assert lines[1] == "kernel --name kernel image/kernel initrd=initrd console=ttyS0 quiet"
    assert lines[-1] == "boot"
