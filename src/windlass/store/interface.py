"""The client protocol of the object API, used by controllers, scheduler, SDK and CLI.

Two back ends implement it: `store.kubernetes` (HTTP, to a cluster or to `windlass up`) and
`store.embedded` (inside the server process: no HTTP, same semantics, same errors).
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

from windlass.kinds.types.meta import Object

T = TypeVar("T", bound=Object)

Propagation = Literal["Background", "Foreground", "Orphan"]
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
MergePatch = dict[str, Any]
JsonPatch = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A page of objects, all as of `resource_version`."""

    items: list[T]
    resource_version: str
    continue_token: str = ""
    """Not empty if there are more objects: pass it to the next `list`."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. The object of a BOOKMARK has only a resourceVersion.

    `initial_end` marks the bookmark after the initial events of a watch with `initial_events`.
    """

    type: EventType
    object: T
    initial_end: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Preconditions:
    """Conditions of a delete; if the object does not meet them, the delete raises Conflict."""

    uid: str | None = None
    resource_version: str | None = None


class Store(Protocol):
    """Objects by kind, namespace and name, with optimistic concurrency.

    Every method raises classes of `store.errors`. A write is durable when it returns. Objects are
    structs of `kinds`; fields that the structs do not define survive every write.
    `namespace=""` means all namespaces for list and watch, and none for cluster-scoped kinds.
    """

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T: ...

    async def list(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ObjectList[T]: ...

    def watch(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        initial_events: bool = False,
        timeout_seconds: int | None = None,
        opened: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yields changes after `resource_version`. Ends when the server ends it: resume from the
        last version. Raises Gone when the history of that version is compacted: list again.
        `opened` is called when the server has accepted the watch, before any change arrives."""
        ...

    async def create(self, obj: T, *, dry_run: bool = False) -> T: ...

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        """Writes the whole object; raises Conflict if its resourceVersion is set and outdated."""
        ...

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch | JsonPatch,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """A dict is a JSON merge-patch, a list a JSON-patch. With `metadata.resourceVersion` in a
        merge-patch the write is conditional."""
        ...

    async def delete(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        propagation: Propagation = "Background",
        preconditions: Preconditions | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> T | None:
        """Returns the object if it still exists (finalizer, grace period), else None."""
        ...

    async def create_subresource(
        self, kind: type[T], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> object:
        """POSTs to a subresource that is an action: pods/binding, pods/eviction."""
        ...

    async def close(self) -> None: ...
