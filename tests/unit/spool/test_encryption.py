"""With a key, nothing lies in the clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen.core.cipher import KeyRing
from queen.errors import EncryptionUnavailable
from queen.spool.encryption import RingCipher
from tests.unit.spool.disks import JSON, bodies_of, open_spool, read_all, spool_files, spool_in

_OLD, _NEW = b"o" * 32, b"n" * 32
_SECRET = b"the secret of the customer"


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_every_record_is_encrypted_and_comes_back(tmp_path: Path) -> None:
    cipher = RingCipher(KeyRing([_OLD]))
    spool = open_spool(tmp_path, cipher=cipher)
    spool.append([_SECRET, b"other"], JSON, durable=True)
    assert bodies_of(spool) == [_SECRET, b"other"]
    spool.refuse([(read_all(spool)[0], "bad")])
    assert _SECRET not in everything_in(tmp_path)
    spool.close()
    # The next server has a new key in front of the old one.
    spool = open_spool(tmp_path, cipher=RingCipher(KeyRing([_NEW, _OLD])))
    assert bodies_of(spool) == [_SECRET, b"other"]
    spool.retry()
    assert bodies_of(spool)[-1] == _SECRET
    assert _SECRET not in everything_in(tmp_path)
    spool.close()


@pytest.mark.parametrize("cipher", [None, RingCipher(KeyRing([_NEW]))])
def test_without_the_key_reading_waits_for_it(tmp_path: Path, cipher: RingCipher | None) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"in the clear"], JSON)
    spool = open_spool(tmp_path, cipher=RingCipher(KeyRing([_OLD])))
    spool.append([_SECRET], JSON)
    spool.close()
    spool = open_spool(tmp_path, cipher=cipher)
    (clear,) = spool.read(0)
    assert clear.body == b"in the clear"
    for _ in range(2):
        with pytest.raises(EncryptionUnavailable):
            spool.read(clear.seq)
    assert spool.quarantined() == []
    spool.close()


def test_what_does_not_decrypt_with_its_key_goes_to_quarantine(tmp_path: Path) -> None:
    """Such as a record that was written for another spool."""

    class Mistaken(RingCipher):
        def encrypt(self, spool: bytes, body: bytes) -> bytes:
            return (
                super().encrypt(b"another", body)
                if body == b"bad"
                else super().encrypt(spool, body)
            )

    spool = open_spool(tmp_path, cipher=Mistaken(KeyRing([_OLD])))
    spool.append([b"good", b"bad", b"good too", b"bad"], JSON)
    assert bodies_of(spool) == [b"good", b"good too"]
    assert [each.reason[:20] for each in spool.quarantined()] == ["it does not decrypt:"] * 2
    assert spool_files(spool)
    spool.close()
