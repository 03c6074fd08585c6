"""The options of requests to the embedded API, and its raw results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from windlass.store.interface import Propagation

FieldValidation = Literal["Strict", "Warn", "Ignore"]
PatchType = Literal["merge", "json", "strategic"]
Json = dict[str, Any]
Review = Callable[[Json, Json], Json]
"""Gets the stored object and the one to store; returns the latter, possibly changed, or raises."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListQuery:
    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchQuery:
    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    bookmarks: bool = False
    initial_events: bool = False
    timeout_seconds: int | None = None
    """When the caller ends the watch; a bookmark is sent shortly before."""


@dataclasses.dataclass(slots=True)
class WriteOptions:
    user: str = ""
    dry_run: bool = False
    field_validation: FieldValidation = "Warn"
    warnings: list[str] = dataclasses.field(default_factory=list)
    """Set by the API: warnings about a write that succeeded."""
    review: Review | None = None
    """Called in the transaction of an update, so that it sees what the update replaces."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteOptions:
    propagation: Propagation | None = None
    uid: str | None = None
    resource_version: str | None = None
    grace_seconds: int | None = None
    dry_run: bool = False


@dataclasses.dataclass(frozen=True)
class RawList:
    """Encoded objects, joined by commas, as of one revision."""

    body: bytes
    resource_version: int
    continue_token: str = ""
    remaining: int | None = None

    @functools.cached_property
    def items(self) -> list[bytes]:
        """The encoded objects one by one."""
        raws = msgspec.json.decode(b"[" + self.body + b"]", type=list[msgspec.Raw])
        return [bytes(raw) for raw in raws]


@dataclasses.dataclass(frozen=True, slots=True)
class RawEvent:
    type: str
    data: bytes
    initial_end: bool = False
