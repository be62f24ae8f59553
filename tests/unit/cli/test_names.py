from __future__ import annotations

import random

import pytest

from atoll.cli.names import ADJECTIVES, NOUNS, readable
from atoll.model.checks import check_name


def test_every_name_is_one_that_a_vm_can_have():
    for adjective in ADJECTIVES:
        for noun in NOUNS:
            check_name("name", f"{adjective}-{noun}")


@pytest.mark.parametrize("words", [ADJECTIVES, NOUNS])
def test_no_word_is_there_twice(words):
    assert len(set(words)) == len(words)


def test_a_name_that_is_taken_is_not_given_again():
    dice = random.Random(7)
    taken: set[str] = set()
    for _ in range(len(ADJECTIVES) * len(NOUNS) + 50):
        name = readable(taken, dice.choice)
        check_name("name", name)
        assert name not in taken
        taken.add(name)
