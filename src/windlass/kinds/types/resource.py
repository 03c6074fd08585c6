"""Which kinds exist and how the API names them: one table, read by every room.

`Resource` describes a kind the way Kubernetes' discovery does. The table at the end of
`kinds.registry` lists all of them; stores, the embedded server, the CRD generator and the CLI
look kinds up there and hold no lists of their own.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`: where its value is found and how it is shown."""

    name: str
    json_path: str
    """A JSONPath as CRDs write it: `.status.phase`."""
    type: str = "string"
    """string | integer | date | number | boolean"""
    priority: int = 0
    """0 is shown always, 1 only with `-o wide`."""
    description: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API serves it."""

    group: str
    """"" for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    """Such as `status`, `binding`, `eviction`, `log`."""
    columns: tuple[Column, ...] = ()
    graceful: bool = False
    """Deleting waits for whoever runs it to let go (Pods)."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """`pods`, `runs.windlass.dev`: unique, and what Kubernetes' messages call the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The REST path of a collection, an object or a subresource."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)
