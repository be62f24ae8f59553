from __future__ import annotations

import pytest

from doc_pages import DOCS, Step, missing, steps_of

PAGE = """\
Text, and `code`.

```console
$ atoll vm list
NAME  STATE
web   …
$ atoll vm stop db     # refused
laptop$ atoll vm list
web
```

```
$ not this one
```
"""


def test_commands_are_found_with_what_they_print():
    assert steps_of(PAGE) == [
        Step("atoll vm list", False, ("NAME  STATE", "web   …")),
        Step("atoll vm stop db", True, ()),
        Step("atoll vm list", False, ("web",), elsewhere=True),
    ]


def test_what_a_page_shows_and_a_command_does_not_print_is_named():
    (step, *_) = steps_of(PAGE)
    assert missing(step, "a remark\nNAME      STATE\nweb       running\n") == ""
    assert missing(step, "NAME  STATE\ndb  running\n") == "web   …"
    assert missing(step, "web running\nNAME  STATE\n") == "web   …"


def test_a_block_that_names_a_file_is_its_content():
    page = (
        "```python\n# day.py\nprint(1)\n```\n```python\nprint(2)\n```\n```console\n$ python day.py\n1\n```\n"
    )
    assert steps_of(page) == [
        Step("# day.py\nprint(1)\n", False, (), file="day.py"),
        Step("python day.py", False, ("1",)),
    ]


@pytest.mark.parametrize("page", ["users.md", "remote.md", "what-survives.md"])
def test_a_page_that_is_run_has_commands(page):
    assert len(steps_of((DOCS / page).read_text())) > 15
