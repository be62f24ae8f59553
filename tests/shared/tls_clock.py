"""Moves the clock by which OpenSSL judges certificates, for one context. The standard library has no way to it."""

from __future__ import annotations

import ctypes
import ssl
from datetime import datetime

_SSL = ctypes.CDLL("libssl.so.3")
_CRYPTO = ctypes.CDLL("libcrypto.so.3")
_SSL.SSL_CTX_get0_param.restype = ctypes.c_void_p
_SSL.SSL_CTX_get0_param.argtypes = [ctypes.c_void_p]
_CRYPTO.X509_VERIFY_PARAM_set_time.restype = None
_CRYPTO.X509_VERIFY_PARAM_set_time.argtypes = [ctypes.c_void_p, ctypes.c_long]


def set_time(context: ssl.SSLContext, moment: datetime) -> ssl.SSLContext:
    """From now on this context verifies as if it were that moment."""
    # A context of Python is the header of an object, then the pointer to OpenSSL's.
    native = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    _CRYPTO.X509_VERIFY_PARAM_set_time(_SSL.SSL_CTX_get0_param(native), int(moment.timestamp()))
    return context
