"""Where S3-compatible storage is: one line that may be shown to anybody, without a secret in it.

    s3://BUCKET[/PREFIX]?endpoint=https://HOST[:PORT]&region=REGION&style=path|virtual

Light to import: `windlass install` checks what it is given with it.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

_BUCKET = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_KNOWN = frozenset({"endpoint", "region", "style"})
_FORM = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    bucket: str
    prefix: str
    """"" or a path that ends with "/": all our keys begin with it."""
    endpoint: str
    region: str
    virtual: bool
    """The bucket is part of the host's name, and not the first word of the path."""

    @staticmethod
    def parse(text: str) -> Address:
        """ValueError says what is wrong with it."""
        parts = urllib.parse.urlsplit(text)
        if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"{text!r} is not {_FORM}")
        prefix = parts.path.strip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"the prefix {prefix!r} has other characters than letters, digits, -_."
            )
        try:
            query = dict(urllib.parse.parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError:
            raise ValueError(f"{parts.query!r} is not NAME=VALUE&NAME=VALUE") from None
        if unknown := query.keys() - _KNOWN:
            raise ValueError(f"{sorted(unknown)[0]!r} is none of endpoint, region and style")
        region, style = query.get("region", "us-east-1"), query.get("style", "path")
        if not _REGION.fullmatch(region):
            raise ValueError(f"{region!r} is not the name of a region")
        if style not in ("path", "virtual"):
            raise ValueError(f"style={style} is neither path nor virtual")
        endpoint = _endpoint(query.get("endpoint", f"https://s3.{region}.amazonaws.com"))
        return Address(
            parts.netloc, f"{prefix}/" if prefix else "", endpoint, region, style == "virtual"
        )

    @property
    def base(self) -> str:
        """What keys are appended to: the address of the bucket, with a slash at its end."""
        if not self.virtual:
            return f"{self.endpoint}/{self.bucket}/"
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}/"


def _endpoint(text: str) -> str:
    found = urllib.parse.urlsplit(text)
    bare = not (found.path.strip("/") or found.query or found.fragment or found.username)
    if found.scheme not in ("http", "https") or not found.hostname or not bare:
        raise ValueError(f"endpoint={text} is not https://HOST or https://HOST:PORT")
    return f"{found.scheme}://{found.netloc}"
