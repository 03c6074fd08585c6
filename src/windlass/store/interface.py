"""The one client protocol. Controllers, the scheduler, SDK and CLI speak only this.

Two back ends implement it: `store.kubernetes` (HTTP, to a cluster or to `windlass up`) and
`store.embedded` (in the server's own process: no HTTP, same semantics, same errors).
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

from windlass.kinds.meta import Object

T = TypeVar("T", bound=Object)

Propagation = Literal["Background", "Foreground", "Orphan"]
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
MergePatch = dict[str, Any]
JsonPatch = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A page of objects, all as they were at `resource_version`."""

    items: list[T]
    resource_version: str
    continue_token: str = ""
    """Not empty: there is more; pass it to the next `list`."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. A BOOKMARK's object carries only its resourceVersion.

    `initial_end` marks the bookmark that closes the initial events of a watch that asked for them.
    """

    type: EventType
    object: T
    initial_end: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Preconditions:
    """What must still be true of the object for a delete to happen; otherwise Conflict."""

    uid: str | None = None
    resource_version: str | None = None


class Store(Protocol):
    """Objects by kind, namespace and name, with optimistic concurrency.

    Every method raises `store.errors` classes. A write that returned is durable. Objects are
    structs of `kinds`; fields the structs do not know survive every write.
    `namespace=""` means: all namespaces for list and watch; none for cluster-scoped kinds.
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
        """Changes after `resource_version`. Ends when the server ends it (resume from the last
        version seen); raises Gone when that version is no longer kept (list again). `opened` is
        called when the server has taken the watch: the first change may be far away."""
        ...

    async def create(self, obj: T, *, dry_run: bool = False) -> T: ...

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        """Writes the whole object; Conflict if its resourceVersion is set and not current."""
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
        """The object as it is now if something still holds it (finalizer, grace), else None."""
        ...

    async def create_subresource(
        self, kind: type[T], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> object:
        """POSTs to a subresource that is an action: pods/binding, pods/eviction."""
        ...

    async def close(self) -> None: ...
