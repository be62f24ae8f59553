from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.fitting import SHORTEST, Need, fit
from atoll.cli.output import Column, table
from atoll.cli.terminal import clipped, width_of

NEEDS = st.lists(
    st.builds(Need, st.integers(1, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=12
)


def total(widths: list[int | None]) -> int:
    shown = [width for width in widths if width is not None]
    return sum(shown) + 2 * (len(shown) - 1)


@given(NEEDS, st.integers(1, 200))
def test_never_wider_than_the_terminal_and_never_without_the_name(needs, limit):
    widths = fit(needs, limit)
    assert len(widths) == len(needs)
    assert widths[0] is not None
    assert total(widths) <= limit


@given(NEEDS, st.integers(1, 200))
def test_no_column_is_wider_than_it_needs_and_only_long_texts_are_shortened(needs, limit):
    for place, (need, width) in enumerate(zip(needs, fit(needs, limit), strict=True)):
        if width is not None and width != need.width:
            assert width < need.width
            assert place == 0 or (need.is_long and width >= SHORTEST)


@given(NEEDS, st.integers(1, 200))
def test_what_is_left_out_matters_no_more_than_what_is_kept(needs, limit):
    widths = fit(needs, limit)
    left_out = [need.rank for need, width in zip(needs[1:], widths[1:], strict=True) if width is None]
    kept = [need.rank for need, width in zip(needs[1:], widths[1:], strict=True) if width is not None]
    assert not left_out or not kept or min(left_out) >= max(kept)


@given(NEEDS)
def test_where_there_is_room_nothing_is_changed(needs):
    assert fit(needs, 10_000) == [need.width for need in needs]


@given(st.lists(st.lists(st.text(max_size=30), min_size=3, max_size=3), max_size=5), st.integers(1, 100))
def test_no_line_of_a_table_is_wider_than_its_limit(rows, limit):
    columns = [
        Column("name", lambda row: row[0]),
        Column("other", lambda row: row[1], rank=2),
        Column("text", lambda row: row[2], rank=1, is_long=True),
    ]
    lines = table(columns, rows, limit=limit).splitlines()
    assert all(width_of(line) <= limit for line in lines)
    assert len(lines) == len(rows) + 1


@given(st.text(), st.integers(1, 40))
def test_what_is_cut_is_no_wider_than_it_may_be(text, width):
    assert width_of(clipped(text, width)) <= width
