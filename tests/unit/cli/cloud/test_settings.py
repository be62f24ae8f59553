from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.cloud import settings
from atoll.errors import Invalid, Malformed

PATH = Path("/cloud/settings.toml")


def test_what_the_user_set_replaces_ours_and_the_rest_stays():
    generated = {"name": "n", "hot_pool": 0, "roles": {"authority": "/pki"}}
    own = {"hot_pool": 4, "roles": {"issuer": {"url": "https://issuer", "ca": "/ca"}}}
    assert settings.merged(generated, own, PATH) == {"name": "n", **own}


@pytest.mark.parametrize("key", sorted(settings.OURS))
def test_what_a_cloud_consists_of_is_not_the_users(key: str) -> None:
    with pytest.raises(Invalid, match="is chosen by atoll up"):
        settings.merged({}, {key: "x"}, PATH)


def test_no_file_is_no_settings(tmp_path: Path) -> None:
    assert settings.read(tmp_path / "settings.toml") == {}


def test_what_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("a = 1\nb = ]\n")
    with pytest.raises(Malformed, match=r"settings\.toml: .*line 2"):
        settings.read(path)
