from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.collection import GRACE_S, LEAST_AGE_S, Kept, can_be_counted_on, collect, needed_by
from trees import IDS

NOW = 1_000_000.0
OLD = NOW - LEAST_AGE_S
SETS = st.frozensets(IDS, max_size=10)
STORED = st.lists(
    st.builds(Kept, IDS, st.integers(1, 100), st.floats(0, NOW)), max_size=20, unique_by=lambda one: one.id
)
CONDEMNED = st.dictionaries(IDS, st.floats(0, NOW), max_size=20)


@given(STORED, st.lists(SETS, max_size=3), st.lists(SETS, max_size=3), st.lists(SETS, max_size=3), CONDEMNED)
def test_nothing_that_somebody_needs_is_ever_condemned_or_removed(stored, images, uploads, holds, condemned):
    needed = needed_by(images, uploads, holds)
    result = collect(stored, needed, condemned, NOW)
    for some in (*images, *uploads, *holds):
        assert not some & set(result.remove)
        assert not some & result.condemned.keys()


@given(STORED, SETS, CONDEMNED)
def test_only_what_was_condemned_for_its_grace_and_is_old_is_removed(stored, needed, condemned):
    result = collect(stored, needed, condemned, NOW)
    by_id = {one.id: one for one in stored}
    for one in result.remove:
        assert condemned[one] <= NOW - GRACE_S
        assert by_id[one].changed_at <= OLD
        assert one in result.condemned
    assert result.bytes_to_remove == sum(by_id[one].size for one in result.remove)


@given(STORED, SETS)
def test_what_nobody_needs_goes_in_the_end_and_the_rest_stays(stored, needed):
    later = NOW + LEAST_AGE_S
    first = collect(stored, needed, {}, later)
    assert first.remove == ()
    second = collect(stored, needed, first.condemned, later + GRACE_S)
    assert set(second.remove) == {one.id for one in stored} - needed


@given(STORED, SETS, CONDEMNED)
def test_what_is_about_to_go_is_counted_on_by_nobody(stored, asked, condemned):
    result = collect(stored, frozenset(), condemned, NOW)
    counted_on = can_be_counted_on({one.id for one in stored}, result.condemned, asked)
    assert counted_on <= asked
    assert not counted_on & set(result.remove)


def test_an_object_that_is_needed_again_is_acquitted():
    old = Kept("1" * 64, 1, OLD)
    first = collect([old], (), {}, NOW)
    assert first.condemned == {old.id: NOW}
    assert collect([old], {old.id}, first.condemned, NOW + GRACE_S).condemned == {}
    assert collect([old], (), {}, NOW + GRACE_S).remove == ()


def test_an_object_that_was_brought_again_is_young():
    brought = Kept("1" * 64, 1, NOW)
    assert collect([brought], (), {brought.id: 0.0}, NOW + 1) == collect([], (), {}, NOW)
