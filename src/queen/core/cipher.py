"""Encryption at rest: AES-256-GCM, with keys that can be changed.

The first key of the ring encrypts, all of them decrypt, and what is stored names the key it
needs by a fingerprint. To rotate, put a new key in front and keep the old one behind it until
nothing is left that was written with it.

    stored   | version u8 | inner codec u8 | fingerprint 8 | salt 16 | nonce 12 | text, tag 16 |

Each process draws a salt when it starts and derives its own key from the ring's with it, so
the random nonces of all processes never share a key: the limit of 2^32 texts per key holds
for one process, not for all that ever wrote. What is encrypted is bound to its owner, such as
a partition: moved elsewhere it does not decrypt.

A key that is missing is an error. Nothing is ever stored in the clear instead.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from queen.errors import EncryptionUnavailable, StartupError

KEY_BYTES = 32
_VERSION = 1
_HEADER = struct.Struct("<BB8s16s12s")
_PURPOSE = b"queen segment"
_DAMAGED = "what is stored does not open: it was damaged or moved"


def fingerprint(key: bytes) -> bytes:
    """Return the public name of a key; it says nothing about the key."""
    return hashlib.sha256(b"queen key" + key).digest()[:8]


class KeyRing:
    """The keys of one server; the first one encrypts."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {fingerprint(key): key for key in keys}
        self._current = next(iter(self._keys), None)
        self._salt = os.urandom(16)

    def __bool__(self) -> bool:
        return self._current is not None

    @property
    def name(self) -> bytes:
        """The name of the key that encrypts, as it stands in what is encrypted."""
        if self._current is None:
            raise EncryptionUnavailable
        return self._current

    @property
    def current(self) -> str | None:
        """The fingerprint of the key that encrypts."""
        return self._current.hex() if self._current else None

    def encrypt(self, owner: bytes, codec: int, text: bytes) -> bytes:
        """Return a text encrypted; `codec` is kept with it and comes back when it is decrypted."""
        if self._current is None:
            raise EncryptionUnavailable
        nonce = os.urandom(12)
        header = _HEADER.pack(_VERSION, codec, self._current, self._salt, nonce)
        cipher = _derive_cipher(self._keys[self._current], self._salt)
        return header + cipher.encrypt(nonce, text, owner + header)

    def lacks(self, encrypted: bytes) -> bool:
        """Whether an encrypted text needs a key that is not here. What does not decrypt although
        its key is here is damaged, and never will."""
        if len(encrypted) < _HEADER.size:
            return False
        version, _, name, _, _ = _HEADER.unpack_from(encrypted)
        return version != _VERSION or name not in self._keys

    def decrypt(self, owner: bytes, encrypted: bytes) -> tuple[int, bytes]:
        """Return codec and text of what `encrypt` made for the same owner."""
        if len(encrypted) < _HEADER.size:
            raise EncryptionUnavailable(_DAMAGED)
        header = encrypted[: _HEADER.size]
        version, codec, name, salt, nonce = _HEADER.unpack(header)
        key = self._keys.get(name)
        if key is None or version != _VERSION:
            raise EncryptionUnavailable(
                f"this server does not have the encryption key {name.hex()}; add it to "
                "QUEEN_ENCRYPTION_KEY behind the current one"
            )
        try:
            text = _derive_cipher(key, salt).decrypt(
                nonce, encrypted[_HEADER.size :], owner + header
            )
        except InvalidTag:
            raise EncryptionUnavailable(_DAMAGED) from None
        return codec, text


def key_name(encrypted: bytes) -> str:
    """Return the fingerprint of the key that an encrypted text needs."""
    name: bytes = _HEADER.unpack_from(encrypted)[2]
    return name.hex()


@lru_cache(maxsize=1024)
def _derive_cipher(key: bytes, salt: bytes) -> AESGCM:
    derived = HKDF(SHA256(), KEY_BYTES, salt, _PURPOSE).derive(key)
    return AESGCM(derived)


def parse_keys(text: str) -> KeyRing:
    """Return the ring of a setting: 64 hexadecimal digits for each key, separated by commas."""
    keys: list[bytes] = []
    for number, part in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        try:
            key = bytes.fromhex(part)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise StartupError(
                f"encryption key {number} is not {2 * KEY_BYTES} hexadecimal digits; "
                'make one with: python -c "import secrets; print(secrets.token_hex(32))"'
            )
        keys.append(key)
    return KeyRing(keys)
