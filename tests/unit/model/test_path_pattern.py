from __future__ import annotations

import time

import pytest

from atoll.errors import Invalid
from atoll.model.path_pattern import MOST_PATTERNS, PathPatterns, check_path_pattern, check_path_patterns


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("var/log", ["var/log", "var/log/syslog", "var/log/a/b"]),
        ("home/*/.cache", ["home/ann/.cache", "home/ann/.cache/x/y"]),
        ("**/*.pyc", ["a.pyc", "usr/lib/a.pyc", "usr/lib/a.pyc/odd"]),
        ("usr/**/doc", ["usr/doc", "usr/share/doc", "usr/share/x/doc/y"]),
        ("a?c", ["abc", "azc/x"]),
        ("**", ["a", "a/b/c"]),
        ("etc/*", ["etc/a", "etc/a/b"]),
    ],
)
def test_a_pattern_covers_what_it_matches_and_all_below(pattern: str, covered: list[str]):
    patterns = PathPatterns([pattern])
    assert [path for path in covered if not patterns.covers(path)] == []


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("var/log", "var/logs"),
        ("var/log", "var"),
        ("var/log", "usr/var/log"),
        ("home/*/.cache", "home/.cache"),
        ("home/*/.cache", "home/ann/x/.cache"),
        ("**/*.pyc", "a.py"),
        ("etc/*", "etc"),
        ("a?c", "ac"),
    ],
)
def test_a_pattern_covers_nothing_else(pattern: str, path: str):
    assert not PathPatterns([pattern]).covers(path)


def test_no_pattern_takes_long_whatever_path_it_meets():
    patterns = PathPatterns(["/".join(["**", "*a*a*a*a*a*b"] * 20)])
    begun = time.monotonic()
    assert not patterns.covers("/".join(["a" * 100] * 40))
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("pattern", ["", "/etc", "etc/", "a//b", "../x", "a/./b", "a\0", "a" * 513])
def test_a_pattern_is_relative_and_plain(pattern: str):
    with pytest.raises(Invalid, match="filter"):
        check_path_pattern("filter", pattern)


def test_patterns_are_so_many_at_most():
    check_path_patterns("filter", ["a"] * MOST_PATTERNS)
    with pytest.raises(Invalid, match="at most"):
        check_path_patterns("filter", ["a"] * (MOST_PATTERNS + 1))
