"""Encrypted backups: whole or refused, and nothing readable on the way."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from windlass.kinds.types import core, meta
from windlass.store.embedded import backup, backup_encryption
from windlass.store.embedded.api import Api
from windlass.store.embedded.backup_encryption import CHUNK, KeyRefused
from windlass.store.embedded.client import EmbeddedStore

SECRET = b"k" * 32
PASSWORD = "aHVzaC1odXNoLWh1c2g="


def encrypted(content: bytes, folder: Path) -> Path:
    (folder / "plain").write_bytes(content)
    with (folder / "sealed").open("wb") as target:
        backup_encryption.encrypt(folder / "plain", target, SECRET)
    return folder / "sealed"


def opened(path: Path, secret: bytes = SECRET) -> bytes:
    target = io.BytesIO()
    backup_encryption.decrypt(path, target, secret)
    return target.getvalue()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_what_is_sealed_comes_out_whole(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert opened(encrypted(content, tmp_path)) == content


@pytest.mark.parametrize("change", ["bit", "cut", "last chunk", "swapped", "repeated", "longer"])
def test_no_change_of_the_file_goes_unnoticed(tmp_path: Path, change: str) -> None:
    path = encrypted(os.urandom(3 * CHUNK + 100), tmp_path)
    data, head, size = bytearray(path.read_bytes()), 42, CHUNK + 16
    chunks = [data[head + size * n : head + size * (n + 1)] for n in range(4)]
    if change == "bit":
        data[head + size + 5] ^= 1
    elif change == "cut":
        data = data[:-50]
    elif change == "last chunk":
        data = data[: head + 3 * size]
    elif change == "swapped":
        data = data[:head] + chunks[1] + chunks[0] + chunks[2] + chunks[3]
    elif change == "repeated":
        data = data[:head] + chunks[0] + chunks[0] + chunks[2] + chunks[3]
    else:
        data += b"x"
    path.write_bytes(data)
    with pytest.raises(KeyRefused):
        opened(path)


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyRefused):
        opened(encrypted(b"content", tmp_path), b"x" * 32)


def test_two_backups_of_the_same_have_nothing_in_common(tmp_path: Path) -> None:
    first = encrypted(b"x" * 4096, tmp_path).read_bytes()
    second = encrypted(b"x" * 4096, tmp_path).read_bytes()
    assert first[42:74] != second[42:74]


@pytest.mark.parametrize(
    ("mode", "content", "why"),
    [(0o644, SECRET, "other users"), (0o600, b"short", "needs 32"), (None, b"", "cannot be read")],
)
def test_a_key_that_protects_nothing_is_refused(
    tmp_path: Path, mode: int | None, content: bytes, why: str
) -> None:
    path = tmp_path / "key"
    if mode is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(KeyRefused, match=why):
        backup_encryption.read_key(path)


async def test_a_store_goes_through_an_encrypted_backup(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    api = await Api.open(state / "store.db")
    store = EmbeddedStore(api)
    name = meta.ObjectMeta(name="s", namespace="default")
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name="default")))
    await store.create(core.Secret(metadata=name, data={"k": PASSWORD}))
    target = tmp_path / "backup"
    seen: list[str] = []
    backup.backup(state / "store.db", target, SECRET)
    await api.close()
    seen += [path.name for path in state.iterdir()]
    assert not [each for each in seen if each.startswith(".")]
    assert PASSWORD.encode() not in target.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o600
    for secret in (None, b"x" * 32):
        with pytest.raises(KeyRefused):
            backup.restore(target, state / "store.db", secret)
    backup.restore(target, state / "store.db", SECRET)
    assert not [path for path in state.iterdir() if path.name.startswith(".")]
    api = await Api.open(state / "store.db")
    found = await EmbeddedStore(api).get(core.Secret, "s", "default")
    assert found.data == {"k": PASSWORD}
    await api.close()
