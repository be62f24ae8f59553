from __future__ import annotations

from atoll.system import clock


def test_whether_the_clock_is_kept_in_step_is_asked_of_the_kernel():
    assert clock.is_synchronised() in (True, False)
