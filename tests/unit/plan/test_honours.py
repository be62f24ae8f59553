"""What guests of an image do nothing with is refused or said; of an image that does not say, nothing is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Conflict
from atoll.model.hardware import Netboot
from atoll.model.image import Ability, DirectBoot, Image
from atoll.model.share import ShareMount
from atoll.model.vm import ConsoleKind
from atoll.plan.honours import CLOUD_CONFIG, check_honoured, remarks
from samples import a_vm

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3R7hQ0Zl0m2n0c0Yk1n1uF1v1x1y1z1A1B1C1D1E1F ann"
FORMS = (b"", b"plain text", b"#!/bin/sh\n", *(begin + b"\nmore" for begin in CLOUD_CONFIG))


def image(*honours: Ability) -> Image:
    return Image("debian", ("sim",), DirectBoot("kernel", "initrd"), "00", honours=honours)


SILENT = Image("debian", ("sim",), DirectBoot("kernel", "initrd"), "00")
APPLIANCE = image(Ability.SCRIPT)


def test_ssh_keys_are_refused_where_nobody_would_look_at_them() -> None:
    keyed = a_vm(ssh_keys=(KEY,))
    with pytest.raises(Conflict, match="guests of image debian have no SSH server") as refusal:
        check_honoured(keyed, APPLIANCE, b"")
    assert "atoll vm console" in str(refusal.value.hint)
    check_honoured(keyed, image(Ability.SSH_KEYS), b"")
    check_honoured(a_vm(), APPLIANCE, b"")


def test_what_is_for_cloud_init_is_refused_where_there_is_none() -> None:
    with pytest.raises(Conflict, match="have no cloud-init, which is for #cloud-config") as refusal:
        check_honoured(a_vm(), APPLIANCE, b"#cloud-config\nusers: []\n")
    assert refusal.value.hint == "give a script, which begins with #!"
    check_honoured(a_vm(), image(Ability.CLOUD_INIT), b"#cloud-config\nusers: []\n")


def test_a_script_is_refused_where_nothing_runs_it() -> None:
    with pytest.raises(Conflict, match="run no scripts"):
        check_honoured(a_vm(), image(), b"#!/bin/sh\n")
    for able in (APPLIANCE, image(Ability.CLOUD_INIT)):
        check_honoured(a_vm(), able, b"#!/bin/sh\n")


def test_what_is_kept_and_not_run_is_said() -> None:
    assert remarks(a_vm(), APPLIANCE, b"#!/bin/sh\n") == remarks(a_vm(), APPLIANCE, b"") == ()
    (said,) = remarks(a_vm(), APPLIANCE, b"key = value\n")
    assert said.startswith("its user data is no script (#!)")
    (dark,) = remarks(a_vm(console=ConsoleKind.VNC), APPLIANCE, b"")
    assert "draw nothing" in dark
    assert remarks(a_vm(console=ConsoleKind.VNC), image(Ability.SCREEN), b"") == ()


def test_folders_that_a_guest_has_to_mount_itself_are_said_with_the_command() -> None:
    vm = a_vm(shares=(ShareMount("data", "/srv/data"),))
    (said,) = remarks(vm, APPLIANCE, b"", own_kernel=True)
    assert said.endswith("mkdir -p /srv/data; mount -t virtiofs data /srv/data")
    assert remarks(vm, APPLIANCE, b"") == remarks(vm, image(Ability.SHARES), b"", own_kernel=True) == ()
    netbooted = a_vm(shares=vm.shares, netboot=Netboot.ALWAYS)
    assert remarks(netbooted, image(Ability.SHARES), b"", own_kernel=True) == (said,)


@given(
    keys=st.sampled_from([(), (KEY,)]),
    console=st.sampled_from(ConsoleKind),
    user_data=st.one_of(st.sampled_from(FORMS), st.binary()),
    honours=st.one_of(st.none(), st.just(tuple(Ability))),
)
def test_an_image_that_can_all_and_one_that_does_not_say_refuse_nothing(
    keys: tuple[str, ...], console: ConsoleKind, user_data: bytes, honours: tuple[Ability, ...] | None
) -> None:
    vm = a_vm(ssh_keys=keys, console=console)
    found = SILENT if honours is None else image(*honours)
    check_honoured(vm, found, user_data)
    assert remarks(vm, found, user_data) == ()
