from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import HostFailure, Unauthenticated
from atoll.identity import tls
from atoll.identity.authority import Authority
from atoll.identity.tls import CurrentTls, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "test")


def write(directory: Path, authority: Authority) -> tuple[Path, Path]:
    issued = authority.issue_user("ann")
    cert, key = directory / "ann.pem", directory / "ann.key"
    cert.write_bytes(issued.cert_pem)
    key.write_bytes(issued.key_pem)
    return cert, key


def test_a_client_takes_up_files_that_changed_once_they_belong_together(tmp_path: Path, authority: Authority):
    cert, key = write(tmp_path, authority)
    current = CurrentTls(lambda: tls.client_context(authority.cert_path, cert, key), cert, key)
    first = current()
    assert current() is first
    fresh = authority.issue_user("ann")
    cert.write_bytes(fresh.cert_pem)
    assert current() is first
    key.unlink()
    assert current() is first
    key.write_bytes(fresh.key_pem)
    second = current()
    assert second is not first
    assert current() is second


def test_a_client_without_files_says_so_at_once(tmp_path: Path, authority: Authority):
    missing = tmp_path / "none"
    with pytest.raises(Unauthenticated, match="none: no such file"):
        CurrentTls(lambda: tls.client_context(authority.cert_path, missing, missing), missing)


def test_a_pair_is_checked_before_it_is_used_and_its_key_is_not_shown(authority: Authority):
    one, other = authority.issue_server(["a"]), authority.issue_server(["a"])
    Pair(one.cert_pem, one.key_pem).check()
    with pytest.raises(HostFailure, match="key_values_mismatch"):
        Pair(one.cert_pem, other.key_pem).check()
    with pytest.raises(HostFailure):
        Pair(b"", b"").check()
    assert "PRIVATE" not in repr(Pair(one.cert_pem, one.key_pem))
