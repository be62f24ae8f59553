"""What a certificate of any issuer says. Pure.

Lenient about what is absent, strict about what is there: a malformed extension refuses the certificate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from atoll.errors import Malformed
from atoll.identity import extensions
from atoll.identity.certificates import GROUPS, LIMIT, METHODS, UNREADABLE
from atoll.identity.claims import Claims, Kind

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)

_UNDERSTOOD = frozenset(
    {
        # What OpenSSL enforces while it verifies a chain.
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.NAME_CONSTRAINTS,
        ExtensionOID.CRL_DISTRIBUTION_POINTS,
        ExtensionOID.CERTIFICATE_POLICIES,
        ExtensionOID.POLICY_CONSTRAINTS,
        ExtensionOID.POLICY_MAPPINGS,
        ExtensionOID.INHIBIT_ANY_POLICY,
        # What is enforced here.
        GROUPS,
        METHODS,
        LIMIT,
    }
)
"""Extensions that may be critical."""


def subject(certificate: x509.Certificate) -> str:
    """The one common name of the holder, or "" where there is none or more than one."""
    return _common_name(lambda: certificate.subject)


def issuer(certificate: x509.Certificate) -> str:
    return _common_name(lambda: certificate.issuer)


def _common_name(read: Callable[[], x509.Name]) -> str:
    try:
        with warnings.catch_warnings():
            # Other issuers' names may be longer than X.520 allows; our own checks decide.
            warnings.simplefilter("ignore")
            found = read().get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE as error:
        raise Malformed("reading a certificate: its subject or issuer is malformed") from error
    value = found[0].value if len(found) == 1 else ""
    return value if isinstance(value, str) else ""


class Contents:
    def __init__(self, certificate: x509.Certificate) -> None:
        try:
            self._extensions = certificate.extensions
        except UNREADABLE as error:
            raise Malformed("reading a certificate: its extensions are malformed") from error
        self.subject = subject(certificate)

    @property
    def says_ca(self) -> bool | None:
        """Whether it says that it is a CA's; None: it says nothing, as old roots do."""
        found = self._find(x509.BasicConstraints)
        return found.ca if found is not None else None

    @property
    def is_ca(self) -> bool:
        return self.says_ca is True

    @property
    def usages(self) -> frozenset[x509.ObjectIdentifier] | None:
        """None where the certificate does not limit what it is for."""
        found = self._find(x509.ExtendedKeyUsage)
        if found is None or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in found:
            return None
        return frozenset(found)

    @property
    def for_clients(self) -> bool:
        return self.usages is None or ExtendedKeyUsageOID.CLIENT_AUTH in self.usages

    @property
    def for_servers(self) -> bool:
        return self.usages is None or ExtendedKeyUsageOID.SERVER_AUTH in self.usages

    @property
    def kind(self) -> Kind:
        if self.is_ca:
            return Kind.CA
        if self.for_clients:
            return Kind.SERVICE if self.for_servers else Kind.USER
        return Kind.SERVER

    @property
    def names(self) -> tuple[str, ...]:
        found = self._find(x509.SubjectAlternativeName)
        if found is None:
            return ()
        return tuple(str(name.value) for name in found if isinstance(name, x509.DNSName | x509.IPAddress))

    @property
    def groups(self) -> frozenset[str]:
        value = self._value(GROUPS)
        return extensions.decode_groups(value) if value is not None else frozenset()

    @property
    def methods(self) -> frozenset[str]:
        value = self._value(METHODS)
        return extensions.decode_methods(value) if value is not None else frozenset()

    @property
    def limit(self) -> frozenset[str] | None:
        value = self._value(LIMIT)
        return extensions.decode_limit(value) if value is not None else None

    @property
    def not_understood(self) -> str:
        """A critical extension that nobody here enforces: such a certificate must not be relied on."""
        for extension in self._extensions:
            if extension.critical and extension.oid not in _UNDERSTOOD:
                return str(extension.oid.dotted_string)
        return ""

    def claims(self) -> Claims:
        """What to state again when this certificate is renewed."""
        limit = self.limit
        return Claims(
            self.kind,
            self.subject,
            self.names,
            tuple(sorted(self.groups)),
            tuple(sorted(self.methods)),
            None if limit is None else tuple(sorted(limit)),
        )

    def _find(self, kind: type[_Extension]) -> _Extension | None:
        try:
            return self._extensions.get_extension_for_class(kind).value
        except x509.ExtensionNotFound:
            return None

    def _value(self, oid: x509.ObjectIdentifier) -> bytes | None:
        for extension in self._extensions:
            if extension.oid == oid and isinstance(extension.value, x509.UnrecognizedExtension):
                return extension.value.value
        return None
