from __future__ import annotations

import pytest

from atoll.api.hypervisor import CreateVm
from atoll.cli.vm_create import default_image, numbered, undone_text
from atoll.errors import Malformed
from atoll.model.image import DirectBoot, Image
from atoll.model.vm import VmSpec


def image(name: str, *kinds: str) -> Image:
    return Image(name, kinds, DirectBoot("vmlinuz", "initrd"), "sha256:ab", "")


def test_an_image_that_was_not_named_is_ours_or_the_only_one():
    assert default_image([image("debian", "qemu"), image("appliance", "qemu", "lxc")], "qemu") == "appliance"
    assert default_image([image("debian", "qemu"), image("alpine", "lxc")], "lxc") == "alpine"


@pytest.mark.parametrize(
    ("images", "hint"),
    [
        ([image("a", "qemu"), image("b", "qemu")], "one of: a, b"),
        ([image("a", "lxc")], "there is none for qemu; see: atoll image list"),
    ],
)
def test_where_there_is_no_telling_it_has_to_be_named(images, hint):
    with pytest.raises(Malformed, match="which image") as refusal:
        default_image(images, "qemu")
    assert refusal.value.hint == hint


def test_several_of_a_kind_have_a_number():
    request = CreateVm(VmSpec("web", "appliance"), b"#!")
    made = numbered(request, 3)
    assert list(made) == ["web-1", "web-2", "web-3"]
    assert [one.spec.name for one in made.values()] == list(made)
    assert {one.user_data for one in made.values()} == {b"#!"}


def test_what_came_of_an_interrupt_is_told():
    assert undone_text(["a", "b"], []) == "interrupted: undone VM a, b: nothing is left"
    assert undone_text(["a"], ["b"]) == (
        "interrupted: undone VM a: nothing is left; VM b was made already, and stays"
    )
    assert undone_text([], ["b"]) == "interrupted: VM b was made already, and stays"
    assert undone_text([], []) == "interrupted: nothing was under way"
