"""Patterns of paths in a tree: what updates leave alone, what triggers wait for. Pure.

A pattern is a path, relative to the root of the tree. `*` and `?` stand for any letters and for one letter within a
part, `**` as a whole part for any number of parts. It covers what it matches and all that lies below that.

Patterns come with images, so they are matched in steps that grow with pattern times path, never faster: a regular
expression could be written such that one path takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll.errors import Invalid

MOST_PATTERNS = 256
LONGEST = 512
ANY_PARTS = "**"


def check_path_pattern(field: str, pattern: str) -> str:
    """The pattern itself, or Invalid."""
    hint = "write it as var/log, home/*/.cache or **/*.pyc"
    if not 1 <= len(pattern) <= LONGEST:
        raise Invalid(field, pattern, f"must have 1 to {LONGEST} characters", hint=hint)
    if any(part in ("", ".", "..") for part in pattern.split("/")) or "\0" in pattern:
        raise Invalid(field, pattern, "must be relative and plain, without '.', '..' or '//'", hint=hint)
    return pattern


def check_path_patterns(field: str, patterns: Sequence[str]) -> None:
    if len(patterns) > MOST_PATTERNS:
        raise Invalid(field, f"{len(patterns)} patterns", f"must be at most {MOST_PATTERNS}")
    for pattern in patterns:
        check_path_pattern(field, pattern)


class PathPatterns:
    """Several patterns as one: what any of them covers."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._plain: set[str] = set()
        self._wild: list[list[str]] = []
        for pattern in patterns:
            if "*" in pattern or "?" in pattern:
                # What lies below a match is covered too.
                self._wild.append([*pattern.split("/"), ANY_PARTS])
            else:
                self._plain.add(pattern)

    def covers(self, path: str) -> bool:
        """Whether it, or a directory above it, is matched."""
        if self._plain:
            upper = path
            while upper:
                if upper in self._plain:
                    return True
                upper = upper.rpartition("/")[0]
        if not self._wild:
            return False
        parts = path.split("/")
        return any(_match_parts(wild, parts) for wild in self._wild)


def _match_parts(patterns: Sequence[str], parts: Sequence[str]) -> bool:
    """Going back to the last `**` alone is enough: an earlier one could take nothing that the last cannot."""
    at = taken = 0
    star, resume = -1, 0
    while taken < len(parts):
        if at < len(patterns) and patterns[at] == ANY_PARTS:
            star, resume = at, taken
            at += 1
        elif at < len(patterns) and _match_part(patterns[at], parts[taken]):
            at += 1
            taken += 1
        elif star >= 0:
            resume += 1
            at, taken = star + 1, resume
        else:
            return False
    return all(rest == ANY_PARTS for rest in patterns[at:])


def _match_part(pattern: str, part: str) -> bool:
    at = taken = 0
    star, resume = -1, 0
    while taken < len(part):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, taken
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", part[taken]):
            at += 1
            taken += 1
        elif star >= 0:
            resume += 1
            at, taken = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("*")
