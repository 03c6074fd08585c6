"""What the RuntimeClass of a Run adds to its members: overhead, labels of nodes, tolerations.

The API server adds the same to their pods when they are created; by then their node is decided, so
it is a fact for the decision. Pure. `control.picture` counts it for who waits and who holds room,
`control.starting` looks again before pods are made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.control import members
from windlass.core import facts
from windlass.kinds import clusterkinds, run
from windlass.store.reflector import Change

Class = clusterkinds.RuntimeClass


@dataclasses.dataclass(frozen=True, slots=True)
class Addition:
    """What a class adds to each member."""

    name: str = ""
    """Of the class; "": it is the usual runtime, which adds nothing."""
    overhead: Mapping[str, int] = dataclasses.field(default_factory=dict)
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[facts.Toleration, ...] = ()
    problem: str = ""
    """Why no pod of it can be made now, with what helps."""

    def to(self, role: facts.Role) -> facts.Role:
        if not self.name:
            return role
        names = {**role.needs, **self.overhead}
        needs = {
            name: min(members.MOST, role.needs.get(name, 0) + self.overhead.get(name, 0))
            for name in names
        }
        runtime = facts.Runtime(self.name, tuple(sorted(self.overhead.items())))
        narrowed = self.narrowed(role.constraint)
        return dataclasses.replace(role, needs=needs, constraint=narrowed, runtime=runtime)

    def narrowed(self, constraint: facts.Constraint) -> facts.Constraint:
        if not self.selector and not self.tolerations:
            return constraint
        return dataclasses.replace(
            constraint,
            # A label that both name with another value is on no node, which is what it means.
            selector=tuple(sorted({*constraint.selector, *self.selector})),
            tolerations=(*constraint.tolerations, *self.tolerations),
        )


NOTHING = Addition()


class RuntimeClasses:
    """Those of the cluster. Where nobody looks at them, none adds anything."""

    def __init__(self) -> None:
        self.watched = False
        """Somebody does, so one that was not seen is not there."""
        self._classes: dict[str, Class] = {}

    def see(self, _: Change, before: Class | None, after: Class | None) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        self._classes.pop(changed.name, None)
        if after is not None:
            self._classes[after.name] = after

    def of(self, owner: run.Run) -> Addition:
        """What the class that a Run names adds to its members."""
        name = named_by(owner)
        if not name or not self.watched:
            return NOTHING
        found = self._classes.get(name)
        if found is None:
            words = (
                f"spec.overrides.runtimeClassName: there is no RuntimeClass {name} in this "
                "cluster; have it created, or name another one in a new run"
            )
            return Addition(name, problem=words)
        where = found.scheduling or clusterkinds.RuntimeScheduling()
        overhead = found.overhead or clusterkinds.RuntimeOverhead()
        return Addition(
            name,
            members.read_amounts(overhead.pod_fixed),
            tuple(sorted((where.node_selector or {}).items())),
            tuple(
                facts.Toleration(t.key, t.operator or "Equal", t.value, t.effect)
                for t in where.tolerations or ()
            ),
        )


def named_by(owner: run.Run) -> str:
    overrides = owner.spec.overrides
    return (overrides.runtime_class_name if overrides else None) or ""
