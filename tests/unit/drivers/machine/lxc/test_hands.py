from __future__ import annotations

import os

from atoll.drivers.machine.lxc import config
from atoll.drivers.machine.lxc.entrance import _Request
from atoll.drivers.machine.lxc.hands import label_of, request_of
from atoll.model.command import Command, Size


def test_a_request_is_understood_as_it_was_meant() -> None:
    command = Command(("ls", "", "a b"), {"A": "x=y", "B": ""}, "joe", "/tmp", terminal=Size(3, 4))

    asked = _Request(request_of(command, 77, "lxc-container", ["/sys/a/tasks", "/sys/b/tasks"]))

    assert (asked.user, asked.cwd, asked.rows, asked.columns) == ("joe", b"/tmp", 3, 4)
    assert (asked.init, asked.label, asked.groups) == (
        77,
        b"lxc-container",
        [b"/sys/a/tasks", b"/sys/b/tasks"],
    )
    assert asked.argv == [b"ls", b"", b"a b"]
    assert asked.env == {b"A": b"x=y", b"B": b""}
    assert len(asked.rights) == len(config.DROPPED_CAPABILITIES)
    assert [name.decode() for name in asked.calls] == list(config.DENIED_CALLS)


def test_rights_have_the_numbers_of_the_kernel() -> None:
    named = dict(zip(config.DROPPED_CAPABILITIES, config.dropped_numbers(), strict=True))
    assert (named["sys_module"], named["sys_time"], named["mac_override"], named["audit_read"]) == (
        16,
        25,
        32,
        37,
    )


def test_a_profile_is_what_stands_before_its_mode() -> None:
    assert label_of("lxc-container-default-cgns (enforce)\n") == "lxc-container-default-cgns"
    assert label_of("unconfined\n") == label_of("") == ""
    assert os.sep not in label_of("kernel")
