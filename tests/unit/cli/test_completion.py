from __future__ import annotations

import pytest

from atoll.cli.arguments import VM_METAVAR, add_noun, add_verb, top_parser
from atoll.cli.completion import places, script


def parser_of_dogs():
    parser, commands = top_parser()
    verbs = add_noun(commands, "dog", "A dog's life.")
    bark = add_verb(verbs, "bark", lambda options: None, summary="Bark.", example="atoll dog bark")
    bark.add_argument("--how", choices=["loud", "low"], help="a dog's way")
    bark.add_argument("--at", metavar="FILE")
    bark.add_argument("--twice", action="store_true")
    bark.add_argument("vm", nargs="+", metavar=VM_METAVAR)
    return parser


def test_every_place_of_the_tree_is_found_with_what_can_follow():
    found = {place.path: place for place in places(parser_of_dogs())}
    assert list(found) == ["", "dog", "dog bark"]
    assert found[""].words == {"dog": "A dog's life."}
    assert found["dog"].words == {"bark": "Bark."}
    assert found["dog bark"].takes_vms
    options = {option.flags[-1]: option for option in found["dog bark"].options}
    assert options["--how"].choices == ("loud", "low")
    assert options["--at"].is_file
    assert not options["--twice"].takes_value


def test_global_options_are_listed_once():
    found = {place.path: place for place in places(parser_of_dogs())}
    assert "--dir" in found[""].flags
    assert "--dir" not in found["dog bark"].flags


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_know_words_options_choices_and_the_cache(shell):
    text = script(shell, parser_of_dogs())
    for word in ("dog bark", "loud low", "atoll vm list -o name", "XDG_CACHE_HOME", "-5 seconds"):
        assert word in text


def test_fish_descriptions_are_quoted_as_fish_reads_them():
    text = script("fish", parser_of_dogs())
    assert "complete -c atoll -n '__atoll_at dog bark' -l how -x -a 'loud low' -d 'a dog\\'s way'\n" in text
