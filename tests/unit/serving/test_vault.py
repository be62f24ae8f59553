"""What is sealed opens for nobody else, and not after any change."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import HostFailure
from atoll.serving.vault import KEY_BYTES, Vault, open_sealed, seal

KEY = bytes(range(KEY_BYTES))
NAMES = st.text(max_size=40)


@given(st.binary(max_size=4096), NAMES)
def test_what_was_sealed_is_what_is_opened(secret: bytes, of: str) -> None:
    assert open_sealed(KEY, seal(KEY, secret, of), of) == secret


@given(st.binary(min_size=20, max_size=512))
def test_nothing_of_it_is_seen_from_outside_and_it_is_never_the_same(secret: bytes) -> None:
    first, second = seal(KEY, secret, "a"), seal(KEY, secret, "a")
    assert secret not in first
    assert first != second


@given(st.binary(max_size=256), st.integers(0), st.integers(1, 255))
def test_one_that_was_changed_anywhere_never_opens(secret: bytes, where: int, how: int) -> None:
    sealed = bytearray(seal(KEY, secret, "a"))
    sealed[where % len(sealed)] ^= how
    with pytest.raises(HostFailure):
        open_sealed(KEY, bytes(sealed), "a")


@given(st.binary(max_size=256), st.integers(0), st.binary(max_size=20))
def test_one_that_was_cut_short_or_made_longer_never_opens(secret: bytes, keep: int, more: bytes) -> None:
    sealed = seal(KEY, secret, "a")
    with pytest.raises(HostFailure):
        open_sealed(KEY, sealed[: keep % len(sealed)], "a")
    with pytest.raises(HostFailure):
        open_sealed(KEY, sealed + more + b"x", "a")


@given(st.binary(max_size=256), NAMES, NAMES)
def test_that_of_another_never_opens(secret: bytes, of: str, other: str) -> None:
    if of == other:
        return
    with pytest.raises(HostFailure, match="sealed for something else"):
        open_sealed(KEY, seal(KEY, secret, of), other)
    with pytest.raises(HostFailure, match="another key"):
        open_sealed(secrets.token_bytes(KEY_BYTES), seal(KEY, secret, of), of)


@given(st.binary(max_size=256))
def test_any_other_file_is_told_apart(content: bytes) -> None:
    with pytest.raises(HostFailure):
        open_sealed(KEY, content, "a")


def test_the_key_is_made_once_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    assert not path.exists()
    sealed = Vault(path).seal(b"hush", "a")
    key = path.read_bytes()
    assert (len(key), path.stat().st_mode & 0o777) == (KEY_BYTES, 0o600)
    assert Vault(path).open(sealed, "a") == b"hush"
    Vault(path).seal(b"more", "b")
    assert path.read_bytes() == key
    assert [file.name for file in tmp_path.iterdir()] == ["secrets.key"]


def test_a_key_that_others_may_read_or_that_is_damaged_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    sealed = Vault(path).seal(b"hush", "a")
    path.chmod(0o640)
    for use in (lambda: Vault(path).open(sealed, "a"), lambda: Vault(path).seal(b"hush", "a")):
        with pytest.raises(HostFailure, match="is not for root alone"):
            use()
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HostFailure, match="is not 32 bytes long"):
        Vault(path).open(sealed, "a")


def test_a_key_that_is_gone_is_not_made_anew_to_open_with(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    sealed = Vault(path).seal(b"hush", "a")
    path.unlink()
    with pytest.raises(HostFailure, match="reading the key"):
        Vault(path).open(sealed, "a")
    assert not path.exists()
