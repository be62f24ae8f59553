from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.errors import HostFailure, Invalid, NotFound
from atoll.images.store import ImageStore, digest_of
from atoll.model.image import DirectBoot, Image
from atoll.system.owners import Owner, owner_of

BOOT = DirectBoot(kernel="kernel", initrd="initrd", cmdline="quiet")


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def add(
    store: ImageStore, tmp_path: Path, name: str = "tiny", kernel: bytes = b"kernel", **more: str
) -> Image:
    (tmp_path / "k").write_bytes(kernel)
    (tmp_path / "i").write_bytes(b"files")
    files = {"kernel": tmp_path / "k", "initrd": tmp_path / "i"}
    return store.add(name, kinds=("qemu",), boot=BOOT, files=files, ready="port:80", **more)


def test_an_empty_store_lists_nothing(store: ImageStore) -> None:
    assert store.list() == ()


def test_an_added_image_is_found_again_with_its_files(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path, origin="source 1")
    again = ImageStore(store.root)
    assert again.get("tiny") == image
    assert again.list() == (image,)
    assert again.origin("tiny") == "source 1"
    assert again.path(image, "kernel").read_bytes() == b"kernel"
    assert again.path(image, "kernel").stat().st_mode & 0o777 == 0o644


def test_adding_the_same_again_writes_no_file_anew(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path)
    before = store.path(image, "kernel").stat()
    assert add(store, tmp_path) == image
    assert store.path(image, "kernel").stat().st_ino == before.st_ino


def test_the_same_files_with_another_description_are_the_same_digest(
    store: ImageStore, tmp_path: Path
) -> None:
    first = add(store, tmp_path)
    second = add(store, tmp_path, description="better words")
    assert second.digest == first.digest
    assert store.get("tiny").description == "better words"


def test_the_same_files_that_boot_in_another_way_are_another_digest(
    store: ImageStore, tmp_path: Path
) -> None:
    first = add(store, tmp_path)
    other = DirectBoot(kernel="kernel", initrd="initrd", cmdline="debug")
    files = {"kernel": tmp_path / "k", "initrd": tmp_path / "i"}
    second = store.add("tiny", kinds=("qemu",), boot=other, files=files, ready="port:80")
    assert second.digest != first.digest
    assert store.get_digest("tiny", first.digest).boot == BOOT


def test_a_replaced_image_is_found_by_its_digest(store: ImageStore, tmp_path: Path) -> None:
    old = add(store, tmp_path)
    new = add(store, tmp_path, kernel=b"new kernel")
    assert store.get("tiny") == new
    assert store.list() == (new,)
    for image, content in ((old, b"kernel"), (new, b"new kernel")):
        assert store.get_digest("tiny", image.digest) == image
        assert store.path(image, "kernel").read_bytes() == content


def test_an_image_of_a_store_without_records_by_digest_is_found_after_it_is_replaced(
    store: ImageStore, tmp_path: Path
) -> None:
    old = add(store, tmp_path)
    (store.root / "tiny" / f"{old.digest}.json").unlink()
    assert store.get_digest("tiny", old.digest) == old
    add(store, tmp_path, kernel=b"new kernel")
    assert store.get_digest("tiny", old.digest) == old


def test_a_digest_that_is_gone_is_said_with_what_to_do(store: ImageStore, tmp_path: Path) -> None:
    add(store, tmp_path)
    with pytest.raises(NotFound, match="image tiny 000000000000: it is gone") as gone:
        store.get_digest("tiny", "0" * 64)
    assert "backup" in gone.value.hint
    with pytest.raises(Invalid):
        store.get_digest("tiny", "../../etc")


@pytest.fixture
def owners(tmp_path: Path) -> tuple[Owner, Owner]:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    return owner_of(tmp_path / "one"), owner_of(tmp_path / "other")


def there(store: ImageStore) -> set[str]:
    return {path.name.split(".")[0] for path in (store.root / "tiny").iterdir()} - {"image"}


def test_what_nobody_holds_is_removed_and_leaves_nothing(
    store: ImageStore, tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    add(store, tmp_path)
    new = add(store, tmp_path, kernel=b"new kernel")
    store.tidy(owners[0], ())
    names = {entry.name for entry in (store.root / "tiny").iterdir()}
    assert names == {"image.json", new.digest, f"{new.digest}.json"}


def test_what_anybody_holds_stays_until_the_last_lets_go(
    store: ImageStore, tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    one, other = owners
    old = add(store, tmp_path)
    for owner in owners:
        store.hold("tiny", old.digest, owner)
        store.hold("tiny", old.digest, owner)
    new = add(store, tmp_path, kernel=b"new kernel")
    store.tidy(one, {("tiny", old.digest)})
    store.tidy(other, ())
    assert there(store) == {old.digest, new.digest}
    store.tidy(one, ())
    assert there(store) == {new.digest}
    with pytest.raises(NotFound):
        store.hold("tiny", old.digest, one)


def test_the_hold_of_an_agent_that_is_gone_counts_no_more(
    store: ImageStore, tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    one, other = owners
    old = add(store, tmp_path)
    store.hold("tiny", old.digest, other)
    new = add(store, tmp_path, kernel=b"new kernel")
    (tmp_path / "other" / "mark").unlink()
    (tmp_path / "other").rmdir()
    store.tidy(one, ())
    assert there(store) == {new.digest}


def test_a_hold_that_cannot_be_read_counts(
    store: ImageStore, tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    one, other = owners
    old = add(store, tmp_path)
    store.hold("tiny", old.digest, other)
    (store.root / "tiny" / f"{old.digest}.held" / other.mark).write_bytes(b"{")
    add(store, tmp_path, kernel=b"new kernel")
    store.tidy(one, ())
    assert old.digest in there(store)


def test_an_image_that_is_damaged_loses_nothing_more(
    store: ImageStore, tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    image = add(store, tmp_path)
    (store.root / "tiny" / "image.json").write_bytes(b"{")
    store.tidy(owners[0], ())
    assert store.get_digest("tiny", image.digest) == image


def test_what_a_killed_add_left_is_cleared_by_the_next(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path)
    half = store.root / "tiny" / f".{image.digest}.new"
    half.mkdir()
    (half / "kernel").write_bytes(b"ker")
    add(store, tmp_path)
    assert not half.exists()


def test_files_that_were_lost_come_back_with_the_next_add(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path)
    store.path(image, "kernel").unlink()
    add(store, tmp_path)
    assert store.path(image, "kernel").read_bytes() == b"kernel"


def test_a_missing_image_names_those_that_there_are(store: ImageStore, tmp_path: Path) -> None:
    add(store, tmp_path, "tiny")
    add(store, tmp_path, "other")
    with pytest.raises(NotFound) as missing:
        store.get("absent")
    assert missing.value.hint == "there are: other, tiny"
    assert store.origin("absent") is None


@pytest.mark.parametrize("harm", ["not json", "{}", "no record", "short kernel", "another's record"])
def test_a_damaged_image_is_left_out_with_a_warning_and_said_to_be_damaged(
    store: ImageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    sound = add(store, tmp_path, "sound")
    image = add(store, tmp_path, "tiny")
    record = store.root / "tiny" / "image.json"
    match harm:
        case "no record":
            record.unlink()
        case "short kernel":
            store.path(image, "kernel").write_bytes(b"ker")
        case "another's record":
            record.write_bytes((store.root / "sound" / "image.json").read_bytes())
        case text:
            record.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert store.list() == (sound,)
    assert "image tiny is damaged" in caplog.text
    with pytest.raises(HostFailure, match="image tiny is damaged") as damaged:
        store.get("tiny")
    assert damaged.value.hint
    assert store.origin("tiny") is None


def test_a_record_that_breaks_the_rules_of_an_image_is_damage(store: ImageStore, tmp_path: Path) -> None:
    add(store, tmp_path)
    path = store.root / "tiny" / "image.json"
    record = json.loads(path.read_bytes())
    record["image"]["boot"]["kernel"] = "../../etc/passwd"
    path.write_text(json.dumps(record))
    with pytest.raises(HostFailure, match="damaged"):
        store.get("tiny")


@pytest.mark.parametrize("name", ["", "..", "a/b", "UPPER", "a\n", ".hidden"])
def test_a_bad_name_never_reaches_the_disk(store: ImageStore, tmp_path: Path, name: str) -> None:
    for use in (store.get, store.origin, lambda bad: add(store, tmp_path, bad)):
        with pytest.raises(Invalid):
            use(name)
    assert not store.root.exists()


def test_a_file_outside_of_the_image_has_no_path(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path)
    with pytest.raises(Invalid):
        store.path(image, "../image.json")


def test_an_image_that_could_not_boot_is_refused(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"kernel")
    with pytest.raises(Invalid, match="initrd"):
        store.add("tiny", kinds=("qemu",), boot=BOOT, files={"kernel": tmp_path / "k"})
    assert store.list() == ()


def test_an_unreadable_source_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(HostFailure, match="reading"):
        store.add("tiny", kinds=("qemu",), boot=BOOT, files={"kernel": tmp_path / "absent"})
    assert store.list() == ()


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=5), max_size=3))
def test_the_digest_depends_on_names_and_contents_and_not_on_order(content: dict[str, bytes]) -> None:
    image = Image("tiny", ("qemu",), BOOT, digest="")
    digest = digest_of(content, image)
    assert digest == digest_of(dict(reversed(content.items())), image)
    assert digest == digest_of(content, structs.replace(image, name="other", description="words", digest="d"))
    assert digest != digest_of(content, structs.replace(image, ready="dhcp"))
    assert digest != digest_of({**content, "longer": b""}, image)
    for name, data in content.items():
        assert digest != digest_of({**content, name: data + b"\0"}, image)
