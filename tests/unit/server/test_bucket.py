"""The client of S3-compatible storage, against a real server of somebody else's."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yarl

from tests.harness.objectstore import ObjectStore
from windlass.server import patience, s3
from windlass.server.s3address import Address


@pytest.fixture
async def bucket(object_store: ObjectStore, tmp_path: Path) -> AsyncIterator[s3.Bucket]:
    made = s3.Bucket(Address.parse(object_store.url(tmp_path.name)), object_store.keys)
    yield made
    await made.close()


def test_a_signature_is_the_one_that_amazon_publishes_for_this_request() -> None:
    """Their example of a GET with parameters (ListObjects)."""
    url = yarl.URL("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", encoded=True)
    keys = s3.Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    when = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC)
    told = s3.signed("GET", url, b"", keys, "us-east-1", when)["Authorization"]
    assert told.endswith(
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


@pytest.mark.parametrize(
    ("text", "base", "prefix"),
    [
        ("s3://code", "https://s3.us-east-1.amazonaws.com/code/", ""),
        ("s3://code/a/b/?region=eu-1", "https://s3.eu-1.amazonaws.com/code/", "a/b/"),
        ("s3://code?endpoint=http://minio:9000", "http://minio:9000/code/", ""),
        ("s3://code?endpoint=https://s.example&style=virtual", "https://code.s.example/", ""),
    ],
)
def test_an_address_says_where_keys_are(text: str, base: str, prefix: str) -> None:
    found = Address.parse(text)
    assert (found.base, found.prefix) == (base, prefix)


@pytest.mark.parametrize(
    "text",
    ["https://x/y", "s3://", "s3://UPPER", "s3://code/a b", "s3://code?endpoint=ftp://x",
     "s3://code?endpoint=https://u:p@x", "s3://code?key=secret", "s3://code?style=other",
     "s3://code?region=a/b", "s3://code?endpoint"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is n|are n|has other"):
        Address.parse(text)


async def test_what_is_put_is_there_and_goes_when_it_is_deleted(bucket: s3.Bucket) -> None:
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


async def test_a_list_goes_on_page_by_page(bucket: s3.Bucket) -> None:
    names = [f"many/{number:04d}" for number in range(1005)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(bucket.put(name, b"x") for name in names[start : start + 50]))
    assert [entry.key async for entry in bucket.list("many/")] == names


async def test_keys_with_unusual_characters_are_signed_as_they_are_sent(bucket: s3.Bucket) -> None:
    key = "odd/sha256:a b+c=d&e"
    await bucket.put(key, b"x")
    assert [entry.key async for entry in bucket.list("odd/sha256:")] == [key]
    assert await bucket.get(key) is not None


async def test_a_storage_that_is_away_is_asked_again(
    bucket: s3.Bucket, object_store: ObjectStore
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
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.0)
    for name in ("access-key", "ca.crt"):
        (tmp_path / name).write_text((object_store.keys / name).read_text())
    (tmp_path / "secret-key").write_text("not this one")
    wrong = s3.Bucket(Address.parse(object_store.url("x")), tmp_path)
    with pytest.raises(s3.StorageError, match=r"SignatureDoesNotMatch.*check the keys"):
        await wrong.check()
    # A Secret that is replaced is taken up without a restart.
    (tmp_path / "secret-key").write_text((object_store.keys / "secret-key").read_text())
    await wrong.check()
    await wrong.close()
    nowhere = s3.Bucket(Address.parse(object_store.url("x", "no-such")), object_store.keys)
    with pytest.raises(s3.StorageError, match=r"NoSuchBucket.*make the bucket"):
        await nowhere.check()
    await nowhere.close()
    (tmp_path / "secret-key").unlink()
    with pytest.raises(s3.StorageError, match="its Secret needs"):
        await s3.Bucket(Address.parse(object_store.url("x")), tmp_path).check()
