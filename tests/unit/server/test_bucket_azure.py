"""The bucket on Azure Blob Storage. `make soak` runs these tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.azure_storage import AzureStorage
from windlass.server.storage.bucket import bucket as buckets
from windlass.server.storage.bucket.bucket_url import BucketUrl

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("WINDLASS_SOAK") != "1", reason="make soak runs it"),
]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStorage]:
    made = AzureStorage(tmp_path_factory.mktemp("storage"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def bucket(storage: AzureStorage, tmp_path: Path) -> buckets.Bucket:
    return buckets.Bucket(BucketUrl.parse(storage.url(tmp_path.name)), storage.keys)


async def test_an_object_is_written_listed_replaced_and_deleted(bucket: buckets.Bucket) -> None:
    await bucket.check()
    assert await bucket.get("a/one") is None
    await bucket.put("a/one", b"1")
    await bucket.put("a/one", b"another")
    await bucket.put("a/none", b"")
    found = await bucket.get("a/one")
    assert found is not None
    assert found.data == b"another"
    listed = [(entry.key, entry.size) async for entry in bucket.list("a/")]
    assert listed == [("a/none", 0), ("a/one", 7)]
    await bucket.delete("a/one", "a/never")
    await bucket.delete_under("a/")
    assert [entry async for entry in bucket.list("a/")] == []


async def test_many_objects_are_listed_in_order_and_deleted_at_once(bucket: buckets.Bucket) -> None:
    names = [f"many/{number:04d}" for number in range(300)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(bucket.put(name, b"x" * 100) for name in names[start : start + 50]))
    assert [entry.key async for entry in bucket.list("many/")] == names
    await bucket.delete_under("many/")
    assert [entry async for entry in bucket.list("many/")] == []


async def test_a_missing_container_and_a_wrong_key_are_errors_with_a_remedy(
    storage: AzureStorage, tmp_path: Path
) -> None:
    missing = buckets.Bucket(BucketUrl.parse(storage.url("x", "no-such")), storage.keys)
    with pytest.raises(buckets.StorageError, match="make the container first"):
        await missing.check()
    (tmp_path / "ca.crt").write_text((storage.keys / "ca.crt").read_text())
    (tmp_path / "account-key").write_text("bm90IHRoaXMgb25l")
    wrong = buckets.Bucket(BucketUrl.parse(storage.url("x")), tmp_path)
    with pytest.raises(buckets.StorageError, match="keys of the storage"):
        await wrong.check()


async def test_a_secret_without_the_needed_keys_names_them(
    storage: AzureStorage, tmp_path: Path
) -> None:
    empty = buckets.Bucket(BucketUrl.parse(storage.url("x")), tmp_path)
    with pytest.raises(buckets.StorageError, match="its Secret needs"):
        await empty.check()
