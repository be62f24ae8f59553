from __future__ import annotations

from atoll.cli.several import Outcome, summary
from atoll.errors import Denied, NotFound


def test_the_exit_status_tells_all_none_and_some_apart():
    assert Outcome({"a": 1}).status == 0
    assert Outcome({}, {"a": Denied("no"), "b": NotFound("no")}).status == 5
    assert Outcome({"a": 1}, {"b": NotFound("no")}).status == 10


def test_what_came_of_each_is_in_the_order_in_which_they_were_named():
    outcome = Outcome({"c": 3, "a": 1}, {"d": NotFound("no"), "b": Denied("no")}).ordered(
        ["a", "b", "c", "d"]
    )
    assert (list(outcome.done), list(outcome.failed)) == (["a", "c"], ["b", "d"])


def test_the_summary_names_those_that_failed():
    assert summary(Outcome({"a": 1, "b": 2}), "stopped", 0.5) == "2 of 2 VMs stopped in 0.50s"
    assert summary(Outcome({"a": 1}, {"b": Denied("no")}), "made", 1) == "1 of 2 VMs made in 1.00s; not b"
