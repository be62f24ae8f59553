"""SSH keys and roles as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.vm_request import read_ssh_keys
from atoll.errors import Invalid

ONE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFHWXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS ann@home"
TWO = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAabXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS"


def test_a_key_is_given_as_it_is_or_in_a_file_with_others(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n{ONE}\n\n  {TWO}\n")

    assert read_ssh_keys([ONE]) == (ONE,)
    assert read_ssh_keys([str(file)]) == (ONE, TWO)
    assert read_ssh_keys([TWO, str(file)]) == (TWO, ONE)


def test_a_file_of_a_private_key_is_refused_with_the_name_of_the_other_one(tmp_path: Path) -> None:
    file = tmp_path / "id"
    file.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")

    with pytest.raises(Invalid, match="holds a private key") as refusal:
        read_ssh_keys([str(file)])
    assert refusal.value.hint == f"did you mean {file}.pub?"


@pytest.mark.parametrize("source", ["/nonexistent/key.pub", "\0", "/"])
def test_what_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(Invalid, match=r"^ssh_key "):
        read_ssh_keys([source])
