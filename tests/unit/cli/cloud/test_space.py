from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.cloud import space
from atoll.cli.cloud.layout import Paths
from atoll.cli.cloud.space import FileSystem, Need, lacking, needs

CLOUD, IMAGES, CACHE = Path("/c"), Path("/c/images"), Path("/k")
NEEDS = [Need(CLOUD, 64, "records"), Need(IMAGES, 80, "its image"), Need(CACHE, 208, "making it")]


def where(free_mib: int, cache_free_mib: int | None = None) -> dict[Path, FileSystem]:
    here = FileSystem(1, free_mib)
    return {
        CLOUD: here,
        IMAGES: here,
        CACHE: here if cache_free_mib is None else FileSystem(2, cache_free_mib),
    }


def test_what_shares_a_file_system_is_counted_together():
    assert lacking(NEEDS, where(352)) == []
    (lack,) = lacking(NEEDS, where(351))
    assert (lack.mib, lack.free_mib) == (352, 351)
    assert str(lack).startswith("351 MiB are free, and it takes 352 MiB: 64 MiB for records in /c, ")


def test_each_file_system_lacks_for_itself():
    assert lacking(NEEDS, where(144, 208)) == []
    assert [lack.mib for lack in lacking(NEEDS, where(143, 208))] == [144]
    assert [lack.mib for lack in lacking(NEEDS, where(144, 207))] == [208]
    assert len(lacking(NEEDS, where(0, 0))) == 2


@given(st.integers(0, 500), st.integers(0, 500))
def test_more_room_never_lacks_more(free_mib: int, more_mib: int):
    assert len(lacking(NEEDS, where(free_mib + more_mib))) <= len(lacking(NEEDS, where(free_mib)))


def test_a_cloud_that_is_there_with_its_image_needs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = Paths(tmp_path)
    monkeypatch.setattr(space, "is_built", lambda *_: False)
    assert {need.what for need in needs(paths, tmp_path)} >= {
        "its image",
        "making the image",
        "the kernel package",
    }
    monkeypatch.setattr(space, "is_built", lambda *_: True)
    assert [need.what for need in needs(paths, tmp_path)] == ["its records and logs"]
    paths.cloud.parent.mkdir(parents=True, exist_ok=True)
    paths.cloud.write_text("{}")
    assert needs(paths, tmp_path) == []
