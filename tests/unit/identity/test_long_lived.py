"""Which credentials a node takes for a role."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from atoll.errors import AtollError, Invalid
from atoll.identity.authority import Authority
from atoll.identity.certificates import KeyKind
from atoll.identity.claims import user_claims
from atoll.identity.long_lived import check
from atoll.model.long_lived import LongLivedCredential
from atoll.system import clock
from role_credentials import a_credential, secret_lines

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("ca") / "ca", "Test CA")


@pytest.fixture(scope="module")
def good(authority: Authority) -> LongLivedCredential:
    return a_credential(authority)


def refusal(credential: LongLivedCredential, role: str = "web", later: timedelta = timedelta(0)) -> str:
    with pytest.raises(Invalid) as refused:
        check(credential, role, clock.now() + later)
    told = f"{refused.value.brief} {refused.value.hint} {refused.value.details}"
    assert not any(line in told for line in secret_lines(credential))
    return refused.value.brief


@pytest.mark.parametrize("kind", KeyKind)
@pytest.mark.parametrize("user", ["web", "web@role"])
def test_a_client_certificate_of_the_role_with_its_key_is_taken(
    authority: Authority, kind: KeyKind, user: str
) -> None:
    ends_at = check(a_credential(authority, user, key_kind=kind), "web", clock.now())
    assert abs(ends_at - clock.now() - 30 * DAY) < timedelta(minutes=1)


def test_an_rsa_key_is_taken_and_a_chain_behind_the_certificate(authority: Authority) -> None:
    key = rsa.generate_private_key(65537, 2048)
    certificate = authority.certify(user_claims("web"), key.public_key(), DAY).cert_pem
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    chain = (certificate + authority.cert_pem).decode()
    assert check(LongLivedCredential(chain, pem.decode()), "web", clock.now()) > clock.now()
    reverse = (authority.cert_pem + certificate).decode()
    assert "is not a client's" in refusal(LongLivedCredential(reverse, pem.decode()))


def test_a_certificate_of_somebody_else_is_refused(authority: Authority, good: LongLivedCredential) -> None:
    assert "is not that of role db" in refusal(good, "db")
    for user in ("webb", "web@roles", "admin"):
        assert "is not that of role web" in refusal(a_credential(authority, user))


def test_a_key_that_belongs_to_another_certificate_is_refused(
    authority: Authority, good: LongLivedCredential
) -> None:
    for kind in KeyKind:
        other = a_credential(authority, key_kind=kind)
        assert "does not belong to the certificate" in refusal(structs.replace(good, key=other.key))
    rotten = "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"
    assert "does not belong to the certificate" in refusal(structs.replace(good, key=rotten))


def test_what_is_not_good_now_is_refused(good: LongLivedCredential) -> None:
    assert "certificate '" in refusal(good, later=31 * DAY)
    assert "ended at 20" in refusal(good, later=31 * DAY)
    assert "begins at 20" in refusal(good, later=-DAY)


def test_a_servers_certificate_is_refused(authority: Authority) -> None:
    server = authority.issue_server(["web"])
    assert "is not a client's" in refusal(
        LongLivedCredential(server.cert_pem.decode(), server.key_pem.decode())
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_in_it_is_taken_or_refused(good: LongLivedCredential, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["certificate", "key"]))
    pem = getattr(good, part).splitlines()
    content = bytearray(base64.b64decode("".join(pem[1:-1])))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)))]
    text = "\n".join([pem[0], base64.b64encode(content).decode(), pem[-1]]) + "\n"
    try:
        check(structs.replace(good, **{part: text}), "web", clock.now())
    except AtollError as error:
        assert isinstance(error, Invalid)
