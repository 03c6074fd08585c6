"""The additions of the RuntimeClass of a Run to its replicas: overhead, node labels, tolerations.

The API server adds the same to their pods at creation; by then their node is decided, so it is
input of the decision. Pure. `control.scheduler.cache` adds it to waiting and running workloads,
`control.runs.start_gate` checks it again before pods are created.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.control.model import members
from windlass.core.model import types
from windlass.kinds.types import cluster, run
from windlass.store.informer import Change

Class = cluster.RuntimeClass


@dataclasses.dataclass(frozen=True, slots=True)
class Addition:
    """The additions of a class to each replica."""

    name: str = ""
    """The name of the class; "": the default runtime, which adds nothing."""
    overhead: Mapping[str, int] = dataclasses.field(default_factory=dict)
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[types.Toleration, ...] = ()
    problem: str = ""
    """Why no pod of it can be created now, with the remedy."""

    def to(self, role: types.Role) -> types.Role:
        if not self.name:
            return role
        names = {**role.needs, **self.overhead}
        needs = {
            name: min(members.MOST, role.needs.get(name, 0) + self.overhead.get(name, 0))
            for name in names
        }
        runtime = types.Runtime(self.name, tuple(sorted(self.overhead.items())))
        narrowed = self.narrowed(role.constraint)
        return dataclasses.replace(role, needs=needs, constraint=narrowed, runtime=runtime)

    def narrowed(self, constraint: types.Constraint) -> types.Constraint:
        if not self.selector and not self.tolerations:
            return constraint
        return dataclasses.replace(
            constraint,
            # A label with two different values matches no node, as intended.
            selector=tuple(sorted({*constraint.selector, *self.selector})),
            tolerations=(*constraint.tolerations, *self.tolerations),
        )


NOTHING = Addition()


class RuntimeClasses:
    """The RuntimeClasses of the cluster. Without an informer no class adds anything."""

    def __init__(self) -> None:
        self.watched = False
        """There is an informer, so a class that it does not show does not exist."""
        self._classes: dict[str, Class] = {}

    def on_change(self, _: Change, before: Class | None, after: Class | None) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        self._classes.pop(changed.name, None)
        if after is not None:
            self._classes[after.name] = after

    def of(self, owner: run.Run) -> Addition:
        """The additions of the class that a Run names."""
        name = named_by(owner)
        if not name or not self.watched:
            return NOTHING
        found = self._classes.get(name)
        if found is None:
            message = (
                f"spec.overrides.runtimeClassName: there is no RuntimeClass {name} in this "
                "cluster; have it created, or name another one in a new run"
            )
            return Addition(name, problem=message)
        where = found.scheduling or cluster.RuntimeScheduling()
        overhead = found.overhead or cluster.RuntimeOverhead()
        return Addition(
            name,
            members.read_amounts(overhead.pod_fixed),
            tuple(sorted((where.node_selector or {}).items())),
            tuple(
                types.Toleration(t.key, t.operator or "Equal", t.value, t.effect)
                for t in where.tolerations or ()
            ),
        )


def named_by(owner: run.Run) -> str:
    overrides = owner.spec.overrides
    return (overrides.runtime_class_name if overrides else None) or ""
