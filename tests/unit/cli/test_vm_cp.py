from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from atoll.cli import vm_cp
from atoll.errors import Invalid, Malformed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("web:/srv", ("web", "/srv")),
        ("web:", ("web", ".")),
        ("10.0.0.5:a:b", ("10.0.0.5", "a:b")),
        ("./a:b", None),
        ("/a:b", None),
        ("a", None),
        (":b", None),
    ],
)
def test_a_place_in_a_vm_has_its_name_before_a_colon(text: str, place: tuple[str, str] | None) -> None:
    assert vm_cp.place_of(text) == place


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid):
        vm_cp.place_of("We b:/x")


def test_what_is_there_is_gone_on_with_only_if_it_is_the_beginning() -> None:
    content = os.urandom(5000)
    begun = hashlib.sha256(content[:3000]).hexdigest()
    assert vm_cp._agreed(io.BytesIO(content), 3000, begun, 5000) == 3000
    assert vm_cp._agreed(io.BytesIO(b"x" + content), 3000, begun, 5001) == 0
    assert vm_cp._agreed(io.BytesIO(content), 6000, begun, 5000) == 0
    assert vm_cp._agreed(io.BytesIO(content), 0, "-", 5000) == 0


def test_an_archive_of_a_tree_has_all_of_it_and_no_owner(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x" * 700_000)
    (tmp_path / "d" / "l").symlink_to("../nowhere")
    os.mkfifo(tmp_path / "pipe")
    stream = b"".join(vm_cp._archive(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        names = {entry.name: entry for entry in tar}
        assert set(names) == {".", "d", "d/f", "d/l"}
        assert (names["d/f"].uid, names["d/f"].size, names["d/l"].linkname) == (0, 700_000, "../nowhere")
        content = tar.extractfile("d/f")
        assert content is not None
        assert content.read() == b"x" * 700_000


@pytest.mark.parametrize("line", ["", "- x -", "- 1", f"- {'9' * 5000} -"])
def test_what_a_guest_says_is_bounded(line: str) -> None:
    with pytest.raises(Malformed):
        vm_cp._words(line, 3)
