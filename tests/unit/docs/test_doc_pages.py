from __future__ import annotations

from doc_pages import DOCS, Step, missing, steps_of

PAGE = """\
Text, and `code`.

```console
$ atoll vm list
NAME  STATE
web   …
$ atoll vm stop db     # refused
```

```
$ not this one
```
"""


def test_commands_are_found_with_what_they_print():
    assert steps_of(PAGE) == [
        Step("atoll vm list", False, ("NAME  STATE", "web   …")),
        Step("atoll vm stop db", True, ()),
    ]


def test_what_a_page_shows_and_a_command_does_not_print_is_named():
    (step, _) = steps_of(PAGE)
    assert missing(step, "a remark\nNAME      STATE\nweb       running\n") == ""
    assert missing(step, "NAME  STATE\ndb  running\n") == "web   …"
    assert missing(step, "web running\nNAME  STATE\n") == "web   …"


def test_the_page_of_users_has_commands():
    assert len(steps_of((DOCS / "users.md").read_text())) > 20
