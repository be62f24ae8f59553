from __future__ import annotations

from datetime import timedelta

import pytest

from atoll.errors import Conflict, Denied, Invalid
from atoll.identity import invitations
from atoll.identity.claims import server_claims, user_claims
from atoll.identity.invitations import Invitations
from atoll.system import clock

NOW = clock.now()
HOUR, MONTH = timedelta(hours=1), timedelta(days=30)
ALICE = user_claims("alice", ("web",), (), ("vm.list",))


@pytest.fixture
def kept(tmp_path):
    return Invitations(tmp_path)


def test_an_invitation_is_good_once(kept):
    made, secret = kept.add(ALICE, MONTH, HOUR, NOW)
    assert kept.check(made.id, secret, NOW) == made
    assert kept.take(made.id, secret, NOW) == made
    assert made.claims == ALICE
    with pytest.raises(Denied):
        kept.take(made.id, secret, NOW)


def test_an_invitation_can_be_that_of_a_server(kept):
    made, secret = kept.add(server_claims(("10.0.0.1",)), MONTH, HOUR, NOW)
    assert kept.take(made.id, secret, NOW).claims == server_claims(("10.0.0.1",))


def test_wrong_used_withdrawn_and_expired_ones_are_not_told_apart(kept):
    good, secret = kept.add(ALICE, MONTH, HOUR, NOW)
    used, used_secret = kept.add(ALICE, MONTH, HOUR, NOW)
    gone, gone_secret = kept.add(ALICE, MONTH, HOUR, NOW)
    kept.take(used.id, used_secret, NOW)
    kept.withdraw(gone.id)
    tries = [
        (good.id, bytes(24), NOW),
        (good.id, b"", NOW),
        (good.id, secret, NOW + HOUR),
        (used.id, used_secret, NOW),
        (gone.id, gone_secret, NOW),
        ("0" * 16, secret, NOW),
        ("../ca", secret, NOW),
        ("", secret, NOW),
    ]
    said = set()
    for attempt in tries:
        with pytest.raises(Denied) as refusal:
            kept.take(*attempt)
        said.add((refusal.value.brief, refusal.value.hint))
    assert len(said) == 1
    assert kept.take(good.id, secret, NOW) == good


def test_nobody_can_tell_the_secret_from_what_is_kept(kept, tmp_path):
    made, secret = kept.add(ALICE, MONTH, HOUR, NOW)
    (path,) = (tmp_path / "invitations").iterdir()
    content = path.read_bytes()
    assert secret not in content
    assert secret.hex().encode() not in content
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert secret.hex() not in repr(made)


def test_what_is_over_is_removed_and_what_is_broken_too(kept, tmp_path):
    kept.add(ALICE, MONTH, HOUR, NOW)
    later, _ = kept.add(ALICE, MONTH, 2 * HOUR, NOW)
    (tmp_path / "invitations" / f"{'a' * 16}.json").write_text("{")
    assert kept.all(NOW + HOUR) == [later]
    assert len(list((tmp_path / "invitations").iterdir())) == 1


def test_so_many_can_be_open_and_no_more(kept, monkeypatch):
    monkeypatch.setattr(invitations, "MAX_OPEN", 2)
    kept.add(ALICE, MONTH, HOUR, NOW)
    kept.add(ALICE, MONTH, HOUR, NOW)
    with pytest.raises(Conflict, match="2 invitations are open"):
        kept.add(ALICE, MONTH, HOUR, NOW)
    kept.add(ALICE, MONTH, HOUR, NOW + HOUR)


@pytest.mark.parametrize("valid_for", [timedelta(0), timedelta(days=8), timedelta(seconds=-1)])
def test_an_invitation_is_short_lived(kept, valid_for):
    with pytest.raises(Invalid, match="at most 7 days"):
        kept.add(ALICE, MONTH, valid_for, NOW)
