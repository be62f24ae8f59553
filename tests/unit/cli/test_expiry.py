from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.cli import expiry
from atoll.identity import certificates
from atoll.identity.claims import user_claims
from atoll.identity.validity import Validity

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def ending(left: timedelta, lifetime: timedelta) -> Validity:
    return Validity(NOW + left - lifetime, NOW + left)


@pytest.mark.parametrize(
    ("left", "lifetime", "near"),
    [
        (4 * DAY, 30 * DAY, False),
        (2 * DAY, 30 * DAY, True),
        (7 * HOUR, 24 * HOUR, False),
        (5 * HOUR, 24 * HOUR, True),
        (-HOUR, 24 * HOUR, False),
    ],
)
def test_the_end_is_near_three_days_before_or_in_the_last_quarter(left, lifetime, near):
    assert expiry.is_near(ending(left, lifetime), NOW) is near


def test_within_five_minutes_the_clock_of_the_node_decides():
    assert not expiry.is_certainly_over(ending(timedelta(minutes=-4), DAY), NOW)
    assert expiry.is_certainly_over(ending(timedelta(minutes=-6), DAY), NOW)


@pytest.fixture
def cert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that ends in two hours, of a day."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = certificates.make_key()
    ca = certificates.issue_ca("test", key, serial=1, now=NOW - 100 * DAY, lifetime=1000 * DAY)
    began = NOW - 22 * HOUR
    made = certificates.issue(
        user_claims("ann"), key.public_key(), ca, key, serial=2, now=began, lifetime=DAY
    )
    path = tmp_path / "ann.pem"
    path.write_bytes(certificates.to_pem(made))
    return path


def said(cert: Path, capsys, at: datetime = NOW, **options) -> str:
    expiry.warn(cert, argparse.Namespace(**{"quiet": False, "output": "table", **options}), at)
    return capsys.readouterr().err


def test_it_is_said_once_a_day_with_the_way_to_renew(cert: Path, capsys: pytest.CaptureFixture[str]):
    assert said(cert, capsys) == (
        f"warning: certificate {cert} ends in 2 hours;"
        f" renew it with: atoll ca renew {cert} (on the machine of its CA)\n"
    )
    assert said(cert, capsys, NOW + HOUR) == ""
    # A clock that was set back: what was said then is from the future, and does not silence it for ever.
    assert said(cert, capsys, NOW - HOUR) != ""


@pytest.mark.parametrize(
    "options", [{"quiet": True}, {"output": "json"}, {"output": "yaml"}, {"output": "name"}]
)
def test_scripts_are_not_disturbed(cert: Path, capsys: pytest.CaptureFixture[str], options):
    assert said(cert, capsys, **options) == ""
    assert said(cert, capsys) != ""


@pytest.mark.parametrize("content", [b"rubbish", b"[]", b'{"a": "b"}', b'{"a": "2026-03-01T12:00:00"}'])
def test_a_note_that_is_wrong_does_not_matter(cert: Path, capsys: pytest.CaptureFixture[str], content: bytes):
    note = cert.parent / "cache" / "atoll" / "expiry.json"
    note.parent.mkdir(parents=True)
    note.write_bytes(content)
    assert said(cert, capsys) != ""
    assert said(cert, capsys) == ""
