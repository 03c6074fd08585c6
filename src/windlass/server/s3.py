"""A client of S3-compatible storage: what several servers keep together lies there.

Four requests are all we need: PUT, GET and DELETE of one object, and ListObjectsV2; no extension
of any vendor, no multipart. They are signed as AWS Signature Version 4 wants it. Objects are small
and written whole (`pieces`), so whatever fails on the way is simply asked again, and each of the
four may be. Keys are read from a folder as a Secret is mounted, anew when they are replaced.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import email.utils
import hashlib
import hmac
import logging
import random
import ssl
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import aiohttp
import yarl

from windlass.kinds import times
from windlass.server import patience
from windlass.server.s3address import Address
from windlass.store import errors

_log = logging.getLogger(__name__)

ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, AUTHORITY = (
    "access-key", "secret-key", "session-token", "ca.crt",
)  # fmt: skip
"""Keys of the Secret. The last two need not be there."""
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=5)
_AT_ONCE = 16
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_NOTHING = hashlib.sha256(b"").hexdigest()


class StorageError(errors.Unavailable):
    """The storage does not answer, or refuses us; the message is for people."""


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str
    session_token: str = ""

    @staticmethod
    def read(folder: Path) -> Credentials:
        def value(name: str) -> str:
            return (folder / name).read_text().strip()

        try:
            session = value(SESSION_TOKEN) if (folder / SESSION_TOKEN).exists() else ""
            return Credentials(value(ACCESS_KEY), value(SECRET_KEY), session)
        except OSError as problem:
            raise StorageError(
                f"the keys of the storage cannot be read: {problem}; its Secret needs "
                f"{ACCESS_KEY} and {SECRET_KEY}"
            ) from problem


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    modified: float


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    modified: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Bucket:
    """A bucket, or what lies under one prefix of it. Used inside one event loop."""

    def __init__(self, address: Address, keys: Path) -> None:
        self._address = address
        self._keys = keys
        self._session: aiohttp.ClientSession | None = None
        self._deleting = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self) -> None:
        """StorageError unless all that we do with it can be done."""
        key = f"checks/{random.getrandbits(64):016x}"
        await self.put(key, b"windlass")
        await self.get(key)
        async for _ in self.list("checks/"):
            pass
        await self.delete(key)

    async def put(self, key: str, data: bytes) -> None:
        """Whole or not at all, and in the place of what was there."""
        await self._must("PUT", key, data=data)

    async def get(self, key: str) -> Stored | None:
        answer = await self._must("GET", key, absent=True)
        if answer is None:
            return None
        told = answer.headers.get("Last-Modified", "")
        modified = email.utils.parsedate_to_datetime(told) if told else times.now()
        return Stored(answer.body, modified.timestamp())

    async def delete(self, *keys: str) -> None:
        """What is not there is deleted, too."""

        async def one(key: str) -> None:
            async with self._deleting:
                await self._must("DELETE", key, absent=True)

        await asyncio.gather(*(one(key) for key in keys))

    async def delete_under(self, prefix: str) -> None:
        await self.delete(*[entry.key async for entry in self.list(prefix)])

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        """All whose keys begin so, in the order of their keys."""
        token, own = "", len(self._address.prefix)
        while True:
            query = {"list-type": "2", "prefix": self._address.prefix + prefix}
            if token:
                query["continuation-token"] = token
            answer = await self._must("GET", "", query=query)
            page = _xml(answer.body if answer else b"")
            for found in page.iter("Contents"):
                when = times.parse(found.findtext("LastModified", ""))
                size = int(found.findtext("Size", "0"))
                yield Entry(found.findtext("Key", "")[own:], size, when.timestamp())
            token = page.findtext("NextContinuationToken", "")
            if not token or page.findtext("IsTruncated") != "true":
                return

    # --- one request

    async def _must(
        self, method: str, key: str, *, query: Mapping[str, str] | None = None, data: bytes = b"",
        absent: bool = False,
    ) -> _Answer | None:  # fmt: skip
        """The answer to a request that succeeded; None if there is no such object and that may
        be."""
        answer = await self._patiently(method, key, query or {}, data)
        if 200 <= answer.status < 300:
            return answer
        code = _code(answer.body)
        if answer.status == 404 and absent and code in ("", "NoSuchKey"):
            return None
        raise StorageError(
            f"the storage {self._address.base} answered {answer.status} {code} to {method}; "
            f"{_remedy(code)}"
        )

    async def _patiently(
        self, method: str, key: str, query: Mapping[str, str], data: bytes
    ) -> _Answer:
        failed = ""
        async for _ in patience.tries():
            try:
                answer = await self._once(method, key, query, data)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as problem:
                failed = str(problem) or type(problem).__name__
                continue
            if answer.status not in _AGAIN:
                return answer
            failed = f"{answer.status} {_code(answer.body)}".strip()
        raise StorageError(
            f"the storage {self._address.base} does not answer: {failed}; try again when it does",
            retry_after=1.0,
        )

    async def _once(self, method: str, key: str, query: Mapping[str, str], data: bytes) -> _Answer:
        path = urllib.parse.quote(self._address.prefix + key if key else "", safe="/-_.~")
        url = yarl.URL(self._address.base + path + _query(query), encoded=True)
        # Read each time: they are two small files, and are replaced while we run.
        credentials = Credentials.read(self._keys)
        headers = signed(method, url, data, credentials, self._address.region, times.now())
        async with self._connected().request(
            method, url, data=data or None, headers=headers, allow_redirects=False
        ) as response:
            return _Answer(response.status, response.headers, await response.read())

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            authority = self._keys / AUTHORITY
            trust = ssl.create_default_context(cafile=authority if authority.exists() else None)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust, limit=64), timeout=_TIMEOUT,
                skip_auto_headers=("Content-Type", "Accept-Encoding"),
            )  # fmt: skip
        return self._session


# --- signing --------------------------------------------------------------------------------------


def signed(
    method: str, url: yarl.URL, data: bytes, credentials: Credentials, region: str,
    now: datetime.datetime,
) -> dict[str, str]:  # fmt: skip
    """The headers that a request needs: AWS Signature Version 4."""
    stamp = now.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(data).hexdigest() if data else _NOTHING
    default = {"https": 443, "http": 80}[url.scheme]
    host = url.raw_host or ""
    host = f"[{host}]" if ":" in host else host
    headers = {
        "host": host if url.port == default else f"{host}:{url.port}",
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        (method, url.raw_path, url.raw_query_string,
         *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names, digest)
    )  # fmt: skip
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    told = "\n".join(
        ("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, told.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _query(query: Mapping[str, str]) -> str:
    """In the order and spelling in which it is signed."""
    listed: Iterable[tuple[str, str]] = sorted(query.items())
    told = "&".join(f"{name}={urllib.parse.quote(value, safe='-_.~')}" for name, value in listed)
    return f"?{told}" if told else ""


def _xml(body: bytes) -> ET.Element:
    """Without its namespaces, which some vendors leave out. From the storage that whoever
    installed chose: not from strangers."""
    try:
        root = ET.fromstring(body)  # noqa: S314
    except ET.ParseError as problem:
        raise StorageError(f"the storage's answer cannot be read: {problem}") from problem
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
    return root


def _code(body: bytes) -> str:
    """What an error is called: NoSuchKey, AccessDenied."""
    try:
        return _xml(body).findtext("Code", "")
    except StorageError:
        return ""


def _remedy(code: str) -> str:
    return {
        "NoSuchBucket": "make the bucket first",
        "AccessDenied": "its keys need the right to get, put, delete and list objects there",
        "InvalidAccessKeyId": "check the keys in the Secret of the storage",
        "SignatureDoesNotMatch": "check the keys in the Secret of the storage, and the region",
        "RequestTimeTooSkewed": "set the clock of this node",
    }.get(code, "check the address and the keys of the storage")
