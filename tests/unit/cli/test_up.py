from __future__ import annotations

import pytest

from atoll.cli.main import main


@pytest.mark.parametrize(
    "words",
    [("--listen", "192.0.2.7", "--no-listen"), ("--listen", "example.org"), ("--listen", "1.2.3.4:0")],
)
def test_where_others_find_it_makes_sense_before_anything_is_touched(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *words]) == 2
    assert "listen" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--hot-pool", "--templates"])
@pytest.mark.parametrize("value", ["-1", "1001"])
def test_a_number_that_makes_no_sense_is_refused_before_anything_is_touched(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", f"{option}={value}"]) == 2
    assert value in capsys.readouterr().err
