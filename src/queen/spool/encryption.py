"""Encryption of what is spooled.

When a key is set, every record is encrypted: which queues ask for it may not be known while
the database is away. Records are bound to their spool; in another one they do not decrypt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from queen.errors import EncryptionUnavailable

if TYPE_CHECKING:
    # Its library comes with the server; a client without keys does without it.
    from queen.core.cipher import KeyRing


class Damaged(Exception):
    """A record does not decrypt although its key is there."""


class Cipher(Protocol):
    """How the bodies of a spool are encrypted."""

    def encrypt(self, spool: bytes, body: bytes) -> bytes: ...

    def decrypt(self, spool: bytes, encrypted: bytes) -> bytes:
        """Raise `EncryptionUnavailable` when the key is not here, `Damaged` when it is."""
        ...


class RingCipher:
    """Encrypts with the keys of a broker."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def encrypt(self, spool: bytes, body: bytes) -> bytes:
        return self._keys.encrypt(b"spool" + spool, 0, body)

    def decrypt(self, spool: bytes, encrypted: bytes) -> bytes:
        try:
            return self._keys.decrypt(b"spool" + spool, encrypted)[1]
        except EncryptionUnavailable as error:
            if self._keys.lacks(encrypted):
                raise
            raise Damaged(error.message) from error
