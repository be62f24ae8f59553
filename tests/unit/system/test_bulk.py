from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system.bulk import INCOMING, Bulk


@pytest.mark.parametrize("many", [0, 1, 8, 9, 100])
def test_files_are_written_whole_in_directories_that_are_made(tmp_path: Path, many: int):
    bulk = Bulk(tmp_path)
    items = [(f"{number % 3}/{number}", bytes([number])) for number in range(many)]
    bulk.write(items)
    bulk.write(items[:1])
    bulk.close()
    written = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert written == dict(items)
    assert all((tmp_path / path).stat().st_mode & 0o777 == 0o600 for path, _ in items)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path):
    bulk = Bulk(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HostFailure, match="Not a directory"):
        bulk.write([("file/below", b"x")])
    assert list((tmp_path / INCOMING).iterdir()) == []
    bulk.close()
    bulk.close()
