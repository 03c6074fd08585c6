"""The client of S3-compatible storage, against a real server of another project."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.objectstore import ObjectStore
from windlass.server.storage.bucket import bucket as buckets
from windlass.server.storage.bucket.bucket_url import BucketUrl


@pytest.fixture
def bucket(object_store: ObjectStore, tmp_path: Path) -> buckets.Bucket:
    return buckets.Bucket(BucketUrl.parse(object_store.url(tmp_path.name)), object_store.keys)


@pytest.mark.parametrize(
    ("text", "base", "prefix"),
    [
        ("s3://code", "https://s3.us-east-1.amazonaws.com/code/", ""),
        ("s3://code/a/b/?region=eu-1", "https://s3.eu-1.amazonaws.com/code/", "a/b/"),
        ("s3://code?endpoint=http://minio:9000", "http://minio:9000/code/", ""),
        ("s3://code?endpoint=https://s.example&style=virtual", "https://code.s.example/", ""),
        ("gs://code/a", "gs://code/", "a/"),
        ("az://code/a?account=teams", "az://code/", "a/"),
    ],
)
def test_an_address_says_where_keys_are(text: str, base: str, prefix: str) -> None:
    found = BucketUrl.parse(text)
    assert (found.base, found.prefix) == (base, prefix)


@pytest.mark.parametrize(
    "text",
    ["https://x/y", "s3://", "s3://UPPER", "s3://code/a b", "s3://code?endpoint=ftp://x",
     "s3://code?endpoint=https://u:p@x", "s3://code?key=secret", "s3://code?style=other",
     "s3://code?region=a/b", "s3://code?endpoint", "gs://code?region=eu", "az://code",
     "az://code?account=A_B"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is n|are n|has other"):
        BucketUrl.parse(text)


async def test_what_is_put_is_there_and_goes_when_it_is_deleted(bucket: buckets.Bucket) -> None:
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
    await bucket.delete("a/one", "a/one", "a/never")
    assert await bucket.get("a/one") is None


async def test_a_list_goes_on_page_by_page(bucket: buckets.Bucket) -> None:
    names = [f"many/{number:04d}" for number in range(1005)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(bucket.put(name, b"x") for name in names[start : start + 50]))
    assert [entry.key async for entry in bucket.list("many/")] == names


async def test_keys_with_unusual_characters_are_signed_as_they_are_sent(
    bucket: buckets.Bucket,
) -> None:
    key = "odd/sha256:a b+c=d&e"
    await bucket.put(key, b"x")
    assert [entry.key async for entry in bucket.list("odd/")] == [key]
    assert await bucket.get(key) is not None


async def test_a_storage_that_is_away_is_asked_again(
    bucket: buckets.Bucket, object_store: ObjectStore
) -> None:
    await bucket.put("kept", b"x")
    object_store.stop()
    asking = asyncio.create_task(bucket.get("kept"))
    await asyncio.sleep(0)
    await asyncio.to_thread(object_store.start)
    found = await asking
    assert found is not None
    assert found.data == b"x"


async def test_wrong_keys_and_a_bucket_that_is_not_there_are_said(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    for name in ("access-key", "ca.crt"):
        (tmp_path / name).write_text((object_store.keys / name).read_text())
    (tmp_path / "secret-key").write_text("not this one")
    wrong = buckets.Bucket(BucketUrl.parse(object_store.url("x")), tmp_path)
    with pytest.raises(buckets.StorageError, match=r"SignatureDoesNotMatch.*check the keys"):
        await wrong.check()
    # A Secret that is replaced is taken up without a restart.
    (tmp_path / "secret-key").write_text((object_store.keys / "secret-key").read_text())
    await wrong.check()
    nowhere = buckets.Bucket(BucketUrl.parse(object_store.url("x", "no-such")), object_store.keys)
    with pytest.raises(buckets.StorageError, match=r"NoSuchBucket.*make the bucket"):
        await nowhere.check()
    (tmp_path / "secret-key").unlink()
    with pytest.raises(buckets.StorageError, match="its Secret needs"):
        await buckets.Bucket(BucketUrl.parse(object_store.url("x")), tmp_path).check()
