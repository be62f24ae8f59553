"""Objects in a real S3 store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import Denied, NotFound, Unreachable
from atoll.images.objects import Damaged, Intake, Objects, hashed, id_of, open_objects
from atoll.images.shelves.remote import RemoteShelf
from atoll.images.trees.scanning import scan
from atoll.images.trees.unpacking import unpack
from atoll.model.tree import PIECE_BYTES
from seaweed import BUCKET, KEY, SECRET, s3_server


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as where:
        yield where


@pytest.fixture
def environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As an operator gives it to a service."""
    told = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def objects(environment: pytest.MonkeyPatch) -> Iterator[Objects]:
    opened = open_objects(f"s3://{BUCKET}/images/{os.urandom(4).hex()}")
    yield opened
    opened.close()


def test_objects_of_s3_are_put_got_listed_and_removed(objects: Objects) -> None:
    batch = [(id_of(data), data) for data in (os.urandom(1000) for _ in range(40))]
    whole = os.urandom(PIECE_BYTES)
    objects.put([*batch, (id_of(whole), whole)])
    objects.put(batch)
    ids = [one for one, _ in batch]
    assert list(objects.get_many(reversed(ids))) == [data for _, data in reversed(batch)]
    assert objects.get(id_of(whole)) == whole
    assert objects.missing([*ids, "0" * 64]) == ["0" * 64]
    assert {kept.id: kept.size for kept in objects.list()} == {
        **dict.fromkeys(ids, 1000),
        id_of(whole): PIECE_BYTES,
    }
    (oldest, *_) = sorted(kept.changed_at for kept in objects.list())
    assert objects.remove(ids, unchanged_since=oldest - 10) == 0
    assert objects.remove([*ids, "0" * 64]) == 40
    assert [kept.id for kept in objects.list()] == [id_of(whole)]
    with pytest.raises(NotFound):
        objects.get(ids[0])


def test_what_a_store_has_changed_is_noticed(objects: Objects) -> None:
    objects.put([(id_of(b"right"), b"right")])
    careless = RemoteShelf(objects.name)
    careless.put([(id_of(b"right"), b"wrong")])
    careless.close()
    with pytest.raises(Damaged, match=id_of(b"right")):
        objects.get(id_of(b"right"))


def test_a_tree_goes_through_s3_and_comes_back_as_it_was(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"root/etc/{number}").write_bytes(os.urandom(5000))
    (tmp_path / "root/large").write_bytes(os.urandom(PIECE_BYTES + 1))
    with Intake(objects) as intake:
        tree = scan(tmp_path / "root", intake.take)
    unpack(tree, objects.get_many, tmp_path / "again")
    assert scan(tmp_path / "again", hashed) == tree


def test_wrong_credentials_are_told_without_being_shown(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_SECRET_ACCESS_KEY", "anothersecret")
    opened = open_objects(f"s3://{BUCKET}/x")
    with pytest.raises(Denied, match="s3://objects/x") as refused:
        opened.get("0" * 64)
    assert "anothersecret" not in str(refused.value) + refused.value.hint
    opened.close()


def test_a_store_that_does_not_answer_is_unreachable(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    opened = open_objects(f"s3://{BUCKET}/x")
    with pytest.raises(Unreachable, match="reading object"):
        opened.get("0" * 64)
    opened.close()
