from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.yamltext import to_yaml

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=["Cs"]))
    | st.sampled_from(
        ["yes", "NO", "~", "null", "1e3", "0x1f", "012", "1:30", "2024-01-01", "-", "- a", "a: b", "#", "=",
         "<<", ".inf", "", " ", "a ", "'", '"', "\\", "&a", "*a", "!t", "%", "@", "`", "[", "{", "on", "Y"]
    )
)  # fmt: skip
keys = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["yes", "=", "1", "? a"]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_another_reader_reads_back_what_was_written(value):
    assert yaml.safe_load(to_yaml(value)) == value


def test_block_style_with_nested_lists():
    assert to_yaml({"a": [{"b": 1, "c": []}, [2, "x"]], "d": {}}) == (
        "a:\n  - b: 1\n    c: []\n  - - 2\n    - x\nd: {}\n"
    )


@pytest.mark.parametrize("number", [1e-07, 1e22, 0.1, -2.5, float("inf"), float("-inf")])
def test_numbers_stay_numbers(number):
    assert yaml.safe_load(to_yaml(number)) == number


def test_not_a_number_is_read_as_such():
    assert str(yaml.safe_load(to_yaml(float("nan")))) == "nan"
