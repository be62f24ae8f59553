"""Images, volumes, identities and capacities check themselves too."""

from __future__ import annotations

import pytest

from atoll.errors import Invalid
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.node import Capacity
from atoll.model.volume import Volume, VolumeFormat

BOOT = DirectBoot("vmlinuz", "initrd", "console=ttyS0")


@pytest.mark.parametrize("file", ["", "../vmlinuz", "a/b", ".hidden", "a\n", "a" * 129])
def test_an_image_names_plain_files_only(file: str):
    with pytest.raises(Invalid, match="kernel"):
        DirectBoot(file, "initrd")


def test_a_kernel_command_line_is_printable():
    with pytest.raises(Invalid, match="cmdline"):
        DirectBoot("vmlinuz", "initrd", "quiet\ninit=/bin/sh")


def test_an_image_is_for_some_kind_of_machine():
    assert Image("appliance", ("qemu",), BOOT, digest="00").kinds == ("qemu",)
    with pytest.raises(Invalid, match="kinds"):
        Image("appliance", (), BOOT, digest="00")


def test_a_volume_cannot_be_less_than_nothing():
    with pytest.raises(Invalid, match="size_mib"):
        Volume(VolumeFormat.RAW, -1)


def test_capacity_is_subtracted_piece_by_piece():
    assert Capacity(1000, 512, 10).minus(Capacity(250, 128, 10)) == Capacity(750, 384, 0)


def test_an_identity_may_call_what_its_certificate_names():
    assert Identity("ann", methods=frozenset({"vm.destroy"})).may_call("vm.destroy")
    assert Identity("ann", methods=frozenset({"vm.*"})).may_call("vm.destroy")
    assert Identity("ann", methods=frozenset({"*"})).may_call("vm.destroy")
    assert not Identity("ann", methods=frozenset({"vm.stop", "node.*", "vm"})).may_call("vm.destroy")
    assert not Identity("ann").may_call("vm.destroy")


def test_an_identity_is_among_those_named_by_user_or_group():
    ann = Identity("ann", groups=frozenset({"ops"}))
    assert ann.among(("ann",), ())
    assert ann.among((), ("ops", "dev"))
    assert not ann.among(("ops",), ("ann",))


@pytest.mark.parametrize("user", ["", "a b", "root\n", "../x"])
def test_an_identity_has_a_proper_name(user: str):
    with pytest.raises(Invalid, match="user"):
        Identity(user)
