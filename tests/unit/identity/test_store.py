"""A certificate and its key are replaced together, also by a process that dies in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.errors import Malformed
from atoll.identity import store
from atoll.identity.authority import Authority, Issued
from atoll.identity.store import Credential, belong_together, client_credential


@pytest.fixture
def held(tmp_path: Path) -> tuple[Credential, Issued]:
    """What is there, and what is to take its place."""
    authority = Authority.create(tmp_path / "ca", "test")
    credential = client_credential(tmp_path)
    old = authority.issue_user("ann")
    credential.cert.write_bytes(old.cert_pem)
    credential.key.write_bytes(old.key_pem)
    return credential, authority.renew_with_new_key(old.cert_pem)


def test_both_files_are_replaced_and_nothing_is_left_beside(held: tuple[Credential, Issued]) -> None:
    credential, fresh = held
    store.replace(credential, fresh)
    assert credential.cert.read_bytes() == fresh.cert_pem
    assert credential.key.read_bytes() == fresh.key_pem
    assert sorted(path.name for path in credential.cert.parent.iterdir()) == ["ca", "user.key", "user.pem"]
    assert not store.finish_replacing(credential)


class Died(Exception):
    pass


@pytest.mark.parametrize("survived", range(8))
def test_whoever_finds_a_replacement_that_was_broken_off_has_a_whole_pair(
    held: tuple[Credential, Issued], survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after so many of the calls that change a name."""
    credential, fresh = held
    left = [survived]

    def dying(call):
        def perform(*arguments, **options):
            if not left[0]:
                raise Died
            left[0] -= 1
            return call(*arguments, **options)

        return perform

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            store.replace(credential, fresh)
        except Died:
            pass
    store.finish_replacing(credential)
    assert belong_together(credential.cert, credential.key)
    assert (
        not list(credential.cert.parent.glob("*.next"))
        or not credential.key.with_name("user.key.next").exists()
    )
    store.replace(credential, fresh)
    assert credential.key.read_bytes() == fresh.key_pem


def test_a_key_is_never_lost_to_one_that_is_not_whole(held: tuple[Credential, Issued]) -> None:
    credential, fresh = held
    key = credential.key.read_bytes()
    credential.key.with_name("user.key.next").write_bytes(fresh.key_pem[:20])
    assert store.finish_replacing(credential)
    assert credential.key.read_bytes() == key


def test_renewing_with_a_new_key_states_the_same_and_no_more(tmp_path: Path) -> None:
    from atoll.identity import certificates
    from atoll.identity.contents import Contents

    authority = Authority.create(tmp_path / "ca", "test")
    old = authority.issue_user("ann", ["web"], ["vm.log"], limit=["vm.log", "vm.list"])
    fresh = authority.renew_with_new_key(old.cert_pem)
    was, now = (certificates.from_pem(each.cert_pem) for each in (old, fresh))
    assert Contents(was).claims() == Contents(now).claims()
    assert certificates.public_key(was) != certificates.public_key(now)
    with pytest.raises(Malformed):
        authority.renew_with_new_key(b"rubbish")
