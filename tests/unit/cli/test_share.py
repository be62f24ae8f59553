from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.api.changes import ChangeVm
from atoll.cli.main import parser_for
from atoll.cli.share import share_of
from atoll.cli.vm_change import change_request
from atoll.cli.vm_policies import parse_share
from atoll.errors import Invalid
from atoll.model.share import Share, ShareMount

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_share_is_written_as_name_place_and_mode():
    assert parse_share("data:/data") == ShareMount("data", "/data")
    assert parse_share("data:/srv/d:ro") == ShareMount("data", "/srv/d", read_only=True)
    assert str(parse_share("data:/srv/d:ro")) == "data:/srv/d:ro"


@pytest.mark.parametrize("text", ["data", "data:", "data:d", ":/data", "data:/d:wr", "data:/d:ro:ro", "D:/d"])
def test_what_is_no_share_is_refused(text: str):
    with pytest.raises(Invalid, match="share"):
        parse_share(text)


def test_a_change_names_what_comes_and_what_goes():
    options = parser_for(["vm"]).parse_args(["vm", "change", "web", "--share", "a:/a", "--no-share", "b"])
    assert change_request(options, NOW) == ChangeVm(add_shares=(ShareMount("a", "/a"),), remove_shares=("b",))


def test_what_an_operator_allows_is_what_was_typed():
    words = "share allow data /srv/data --read-only --user ann --group web"
    options = parser_for(["share"]).parse_args(words.split())
    assert share_of(options) == Share("data", "/srv/data", True, ("ann",), ("web",))
