"""Which columns of a table fit a terminal, and how wide each is. Pure.

Long texts are shortened first, down to a width at which they still say something; then the least important columns
are left out; what then is still too wide is cut. The first column, the name, is never left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

GAP_WIDTH = 2
SHORTEST = 16
"""To which a long text is shortened before a column is left out for it."""


class Need(Struct, frozen=True):
    """What a column would like to have."""

    width: int
    rank: int = 0
    """The higher, the sooner it is left out. 0: as late as can be."""
    is_long: bool = False
    """Its text can be shortened."""


def fit(needs: Sequence[Need], limit: int) -> list[int | None]:
    """The width of each column; None: it is left out."""
    widths: list[int | None] = [need.width for need in needs]
    if _shorten(needs, widths, limit):
        return widths
    # From the last to the first among equals: what stands in front was thought to matter more.
    for place in sorted(range(1, len(needs)), key=lambda at: (-needs[at].rank, -at)):
        whole = [None if width is None else needs[at].width for at, width in enumerate(widths)]
        whole[place] = None
        widths = whole
        if _shorten(needs, widths, limit):
            return widths
    return [min(needs[0].width, max(1, limit)), *[None] * (len(needs) - 1)]


def _total(widths: Sequence[int | None]) -> int:
    shown = [width for width in widths if width is not None]
    return sum(shown) + GAP_WIDTH * (len(shown) - 1)


def _shorten(needs: Sequence[Need], widths: list[int | None], limit: int) -> bool:
    """Shorten long texts as far as they have to be; whether all fits then."""
    over = _total(widths) - limit
    for at, need in enumerate(needs):
        width = widths[at]
        if over > 0 and need.is_long and width is not None and width > SHORTEST:
            less = min(over, width - SHORTEST)
            widths[at] = width - less
            over -= less
    return over <= 0
