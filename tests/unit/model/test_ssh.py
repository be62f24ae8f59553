from __future__ import annotations

import base64

import pytest

from atoll.errors import Invalid
from atoll.model.ssh import KINDS, MAX_KEY, MAX_KEYS, check_ssh_key, check_ssh_keys, comment_of, kind_of
from atoll.model.vm import VmSpec


def key(kind: str = "ssh-ed25519", size: int = 32, said: str | None = None) -> str:
    """A public key; `said` is the kind that its bytes name."""
    name = (said or kind).encode()
    blob = len(name).to_bytes(4, "big") + name + size.to_bytes(4, "big") + bytes(size)
    return f"{kind} {base64.b64encode(blob).decode()}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("comment", ["", " ann@home", " Ann's key, at home"])
def test_every_known_kind_is_taken_with_and_without_a_comment(kind: str, comment: str) -> None:
    line = key(kind) + comment

    assert check_ssh_key("ssh_key", line) == line
    assert (kind_of(line), comment_of(line)) == (kind, comment.strip())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "ssh-dss " + key().split()[1],
        'command="rm" ' + key(),
        key() + "\n" + key(),
        key() + "\n",
        key() + " ann\x07",
        key(said="ssh-rsa"),
        "ssh-ed25519 AAAA",
        key().replace(" ", "  "),
        f"{key()} {'x' * MAX_KEY}",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_is_no_public_key_on_one_line_is_refused(line: str) -> None:
    with pytest.raises(Invalid, match=r"^ssh_key "):
        check_ssh_key("ssh_key", line)


def test_a_private_key_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(Invalid) as refusal:
        check_ssh_key("ssh_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\n")

    assert "b3Bl" not in str(refusal.value)
    assert ".pub" in refusal.value.hint


def test_a_vm_takes_so_many_keys_and_no_more() -> None:
    assert VmSpec(name="a", image="b", ssh_keys=(key(),) * MAX_KEYS).ssh_keys
    with pytest.raises(Invalid, match="33 keys"):
        check_ssh_keys("ssh_key", (key(),) * (MAX_KEYS + 1))


@pytest.mark.parametrize("role", ["Web", "a b", "web@role", "x" * 49, ""])
def test_a_role_is_a_short_label(role: str) -> None:
    with pytest.raises(Invalid, match=r"^role "):
        VmSpec(name="a", image="b", role=role)
