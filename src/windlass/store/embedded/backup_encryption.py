"""Encrypted backup files.

    WLBACKUP1\\n                    10 bytes
    salt                           32 bytes; with it HKDF-SHA256 makes the key of this file
    chunk, chunk, ...              AES-256-GCM of 1 MiB each; the last one is shorter, or empty

The nonce of a chunk is its number and whether it is the last, so that chunks cannot be left out,
repeated or put in another order; the header is authenticated with each. `store.embedded.backup`
calls this. The key never leaves the process.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"WLBACKUP1\n"
_SALT, _TAG, CHUNK = 32, 16, 1 << 20
_SHORTEST_KEY = 32
_LONGEST_KEY = 1 << 16


class KeyRefused(Exception):
    """A key file that cannot be used, or that does not open the backup; the message says why."""


def read_key(path: Path) -> bytes:
    """The content of a key file that only its owner may read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise KeyRefused(f"the key {path} cannot be read: {problem.strerror}") from problem
    with open(handle, "rb") as file:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            raise KeyRefused(f"other users may read the key {path}; close it: chmod 600 {path}")
        secret = file.read(_LONGEST_KEY)
    if len(secret) < _SHORTEST_KEY:
        raise KeyRefused(
            f"the key {path} has {len(secret)} bytes, and needs {_SHORTEST_KEY}; make one: "
            f"(umask 077; head -c 32 /dev/urandom > {path})"
        )
    return secret


def is_encrypted(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def encrypt(source: Path, target: BinaryIO, secret: bytes) -> None:
    """Writes the file `source` to `target`, encrypted."""
    salt = os.urandom(_SALT)
    header = MAGIC + salt
    cipher = _cipher(secret, salt)
    target.write(header)
    with source.open("rb") as file:
        number, chunk = 0, file.read(CHUNK)
        while True:
            following = file.read(CHUNK) if len(chunk) == CHUNK else b""
            # A last chunk that is full is followed by an empty one.
            last = len(chunk) < CHUNK
            target.write(cipher.encrypt(_nonce(number, last=last), chunk, header))
            if last:
                return
            number, chunk = number + 1, following


def decrypt(source: Path, target: BinaryIO, secret: bytes) -> None:
    """Writes the content of an encrypted file. Raises KeyRefused if the key is another one, or if
    the file is damaged; what was written until then is to be thrown away."""
    from cryptography.exceptions import InvalidTag

    with source.open("rb") as file:
        header = file.read(len(MAGIC) + _SALT)
        cipher = _cipher(secret, header[len(MAGIC) :])
        number, last = 0, False
        while not last:
            chunk = file.read(CHUNK + _TAG)
            last = len(chunk) < CHUNK + _TAG
            try:
                target.write(cipher.decrypt(_nonce(number, last=last), chunk, header))
            except InvalidTag:
                raise KeyRefused(f"{source} does not open with this key, or is damaged") from None
            number += 1


def _cipher(secret: bytes, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    made = HKDF(SHA256(), length=32, salt=salt, info=b"windlass backup")
    return AESGCM(made.derive(secret))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11) + bytes([last])
