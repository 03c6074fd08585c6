"""The address of object storage: one line without a secret.

    s3://BUCKET[/PREFIX]?endpoint=https://HOST[:PORT]&region=REGION&style=path|virtual
    gs://BUCKET[/PREFIX]
    az://CONTAINER[/PREFIX]?account=ACCOUNT

Light to import: `windlass install` validates its option with it.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

_BUCKET = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_KNOWN = {"s3": ("endpoint", "region", "style"), "gs": (), "az": ("account", "endpoint")}
_FORM = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION, gs://BUCKET or az://CONTAINER"


@dataclasses.dataclass(frozen=True, slots=True)
class BucketUrl:
    scheme: str
    bucket: str
    prefix: str = ""
    """"" or a path that ends with "/": all keys begin with it."""
    endpoint: str = ""
    region: str = ""
    virtual: bool = False
    """The bucket is part of the host's name, and not the first part of the path."""
    account: str = ""

    @staticmethod
    def parse(text: str) -> BucketUrl:
        """Raises ValueError with the reason."""
        parts = urllib.parse.urlsplit(text)
        if parts.scheme not in _KNOWN or not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"{text!r} is not {_FORM}")
        prefix = parts.path.strip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"the prefix {prefix!r} has other characters than letters, digits, -_."
            )
        found = BucketUrl(parts.scheme, parts.netloc, f"{prefix}/" if prefix else "")
        query = _query(parts.scheme, parts.query)
        if parts.scheme == "s3":
            return _s3(found, query)
        return _azure(found, query) if parts.scheme == "az" else found

    @property
    def base(self) -> str:
        """The address to which keys are appended, with a slash at its end."""
        if self.scheme != "s3":
            return f"{self.scheme}://{self.bucket}/"
        if not self.virtual:
            return f"{self.endpoint}/{self.bucket}/"
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}/"


def _query(scheme: str, text: str) -> dict[str, str]:
    try:
        query = dict(urllib.parse.parse_qsl(text, strict_parsing=bool(text)))
    except ValueError:
        raise ValueError(f"{text!r} is not NAME=VALUE&NAME=VALUE") from None
    if unknown := query.keys() - set(_KNOWN[scheme]):
        known = ", ".join(_KNOWN[scheme]) or "no parameters"
        raise ValueError(f"{sorted(unknown)[0]!r} is not a parameter of {scheme}:// ({known})")
    return query


def _s3(url: BucketUrl, query: dict[str, str]) -> BucketUrl:
    region, style = query.get("region", "us-east-1"), query.get("style", "path")
    if not _REGION.fullmatch(region):
        raise ValueError(f"{region!r} is not the name of a region")
    if style not in ("path", "virtual"):
        raise ValueError(f"style={style} is neither path nor virtual")
    endpoint = _endpoint(query.get("endpoint", f"https://s3.{region}.amazonaws.com"))
    return dataclasses.replace(url, endpoint=endpoint, region=region, virtual=style == "virtual")


def _azure(url: BucketUrl, query: dict[str, str]) -> BucketUrl:
    account = query.get("account", "")
    if not _ACCOUNT.fullmatch(account):
        raise ValueError(f"account={account} is not the name of a storage account")
    endpoint = query.get("endpoint", "")
    return dataclasses.replace(url, account=account, endpoint=endpoint)


def _endpoint(text: str) -> str:
    found = urllib.parse.urlsplit(text)
    bare = not (found.path.strip("/") or found.query or found.fragment or found.username)
    if found.scheme not in ("http", "https") or not found.hostname or not bare:
        raise ValueError(f"endpoint={text} is not https://HOST or https://HOST:PORT")
    return f"{found.scheme}://{found.netloc}"
