from __future__ import annotations

from atoll.cli.node import confinements, show_free
from atoll.model.node import DriverInfo


def test_confinement_is_told_in_one_line_for_each_way():
    lxc = DriverInfo("lxc", (), confinement={"user": "its own", "seccomp": "on"})
    assert confinements([DriverInfo("sim", ()), lxc]) == [
        ("lxc", "user", "its own"),
        ("lxc", "seccomp", "on"),
    ]


def test_more_that_is_promised_than_there_is_is_said():
    assert show_free(str, 1, 4) == "1 of 4 free"
    assert show_free(str, 0, 4) == "0 of 4 free"
    assert show_free(str, -3, 4) == "none of 4 free, 3 too much promised"
