"""How the API names a kind: group, version, plural, columns.

`Resource` describes a kind as Kubernetes' discovery does. `kinds.registry` lists all kinds; stores,
the embedded server, the CRD generator and the CLI have no lists of their own.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`: the path of its value, and its format."""

    name: str
    json_path: str
    """A JSONPath as CRDs write it: `.status.phase`."""
    type: str = "string"
    """string | integer | date | number | boolean"""
    priority: int = 0
    """0: always shown; 1: only with `-o wide`."""
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
    """Whether deletion is graceful: it waits until the node has stopped the object (Pods)."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """`pods`, `runs.windlass.dev`: unique, and the name of the resource in messages."""
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
