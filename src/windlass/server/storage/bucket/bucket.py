"""A bucket of object storage, which all servers of a cluster share: S3, GCS or Azure, by obstore.

obstore signs requests, pools connections, and retries idempotent requests; all requests here are.
Objects are small and written whole (`blobs_bucket.PIECE_BYTES`). Keys are read from a folder with a
mounted Secret: a server uses new ones without a restart.
"""

from __future__ import annotations

import dataclasses
import datetime
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from windlass.server.storage.bucket.bucket_url import BucketUrl
from windlass.store import errors

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, RetryConfig, S3Config

AUTHORITY = "ca.crt"
"""Optional in the Secret: the authority of the storage, if the system does not trust it."""
_NEEDED = {
    "s3": ("access-key", "secret-key"), "gs": ("service-account.json",), "az": ("account-key",),
}  # fmt: skip
"""By scheme, the keys of the Secret."""
_SESSION_TOKEN = "session-token"  # noqa: S105 - the name of a file
_RETRY: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": datetime.timedelta(seconds=10),
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=150),
        "max_backoff": datetime.timedelta(seconds=1),
        "base": 2,
    },
}
_Store = S3Store | GCSStore | AzureStore


class StorageError(errors.Unavailable):
    """The storage does not answer, or refuses the request; the message has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    modified: float


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    modified: float


class Bucket:
    """A bucket, or the part of it under a prefix. Used inside one event loop."""

    def __init__(self, url: BucketUrl, keys: Path) -> None:
        self._url = url
        self._keys = keys
        self._read: dict[str, str] = {}
        self._made: _Store | None = None

    async def check(self) -> None:
        """StorageError unless the keys allow all that a server does."""
        key = f"checks/{random.getrandbits(64):016x}"
        await self.put(key, b"windlass")
        await self.get(key)
        async for _ in self.list("checks/"):
            pass
        await self.delete(key)

    async def put(self, key: str, data: bytes) -> None:
        """Writes an object whole or not at all, and replaces the one of that key."""
        try:
            await obstore.put_async(self._store(), key, data, use_multipart=False)
        except (BaseError, OSError) as problem:
            raise self._failed(problem) from problem

    async def get(self, key: str) -> Stored | None:
        """None: there is no such object."""
        try:
            found = await obstore.get_async(self._store(), key)
            data = bytes(await found.bytes_async())
        except FileNotFoundError as problem:
            if _code(problem) == "NoSuchBucket":
                raise self._failed(problem) from problem
            return None
        except (BaseError, OSError) as problem:
            raise self._failed(problem) from problem
        return Stored(data, found.meta["last_modified"].timestamp())

    async def delete(self, *keys: str) -> None:
        """Objects that are not there count as deleted."""
        if not keys:
            return
        try:
            await obstore.delete_async(self._store(), list(keys))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as problem:
            raise self._failed(problem) from problem

    async def delete_under(self, prefix: str) -> None:
        await self.delete(*[entry.key async for entry in self.list(prefix)])

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        """The objects under a prefix that ends with "/", in the order of their keys."""
        try:
            async for page in obstore.list(self._store(), prefix):
                for each in page:
                    yield Entry(each["path"], each["size"], each["last_modified"].timestamp())
        except (BaseError, OSError) as problem:
            raise self._failed(problem) from problem

    # --- the client

    def _store(self) -> _Store:
        """The client; a new one when the Secret has changed."""
        read = self._secret()
        if self._made is None or read != self._read:
            self._made, self._read = _STORES[self._url.scheme](self._url, read), read
        return self._made

    def _secret(self) -> dict[str, str]:
        # Read for each request: they are a few small files, replaced while the server runs.
        needed = _NEEDED[self._url.scheme]
        optional = [
            name for name in (_SESSION_TOKEN, AUTHORITY) if (self._keys / name).exists()
        ]  # fmt: skip
        try:
            return {name: (self._keys / name).read_text().strip() for name in (*needed, *optional)}
        except OSError as problem:
            raise StorageError(
                f"the keys of the storage cannot be read: {problem}; its Secret needs "
                f"{' and '.join(needed)}"
            ) from problem

    def _failed(self, problem: Exception) -> StorageError:
        code = _code(problem)
        if code:
            return StorageError(
                f"the storage {self._url.base} refuses with {code}; {_remedy(code)}"
            )
        text = str(problem).partition("\n\nDebug source")[0]
        return StorageError(
            f"the storage {self._url.base} does not answer: {' '.join(text.split())[:300]}; try "
            "again when it does",
            retry_after=1.0,
        )


# --- clients by scheme ----------------------------------------------------------------------------


def _options(url: BucketUrl, secret: dict[str, str]) -> ClientConfig:
    options: ClientConfig = {
        "timeout": datetime.timedelta(seconds=60),
        "connect_timeout": datetime.timedelta(seconds=5),
        "allow_http": url.endpoint.startswith("http://"),
    }
    if AUTHORITY in secret:
        options["root_certificate"] = secret[AUTHORITY]
    return options


def _s3(url: BucketUrl, secret: dict[str, str]) -> _Store:
    config: S3Config = {
        "access_key_id": secret["access-key"],
        "secret_access_key": secret["secret-key"],
        "region": url.region,
        "endpoint": url.base.rstrip("/") if url.virtual else url.endpoint,
        "virtual_hosted_style_request": url.virtual,
    }
    if _SESSION_TOKEN in secret:
        config["session_token"] = secret[_SESSION_TOKEN]
    return S3Store(
        url.bucket, prefix=url.prefix or None, config=config,
        client_options=_options(url, secret), retry_config=_RETRY,
    )  # fmt: skip


def _gcs(url: BucketUrl, secret: dict[str, str]) -> _Store:
    return GCSStore(
        url.bucket, prefix=url.prefix or None,
        config={"service_account_key": secret["service-account.json"]},
        client_options=_options(url, secret), retry_config=_RETRY,
    )  # fmt: skip


def _azure(url: BucketUrl, secret: dict[str, str]) -> _Store:
    config: AzureConfig = {"account_name": url.account, "account_key": secret["account-key"]}
    if url.endpoint:
        config["endpoint"] = url.endpoint
    return AzureStore(
        url.bucket, prefix=url.prefix or None, config=config,
        client_options=_options(url, secret), retry_config=_RETRY,
    )  # fmt: skip


_STORES: dict[str, Callable[[BucketUrl, dict[str, str]], _Store]] = {
    "s3": _s3, "gs": _gcs, "az": _azure,
}  # fmt: skip


# --- refusals -------------------------------------------------------------------------------------


def _code(problem: Exception) -> str:
    """The storage's name of the error (NoSuchBucket, AccessDenied); "" if it gave none."""
    found = re.search(r"<Code>(\w+)</Code>", str(problem))
    return found[1] if found else ""


def _remedy(code: str) -> str:
    return {
        "NoSuchBucket": "make the bucket first",
        "ContainerNotFound": "make the container first",
        "AccessDenied": "its keys need the right to get, put, delete and list objects there",
        "InvalidAccessKeyId": "check the keys in the Secret of the storage",
        "AuthenticationFailed": "check the keys in the Secret of the storage",
        "SignatureDoesNotMatch": "check the keys in the Secret of the storage, and the region",
        "RequestTimeTooSkewed": "set the clock of this node",
    }.get(code, "check the address and the keys of the storage")
