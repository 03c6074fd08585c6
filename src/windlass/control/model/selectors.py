"""Label selectors of Kubernetes as the requirements that the core compares labels with."""

from __future__ import annotations

from windlass.core.model import types
from windlass.kinds.types import pod_placement

_NEVER = types.Requirement("", "In", ())


def requirements(selector: pod_placement.LabelSelector | None) -> tuple[types.Requirement, ...]:
    """All of them must hold. As in Kubernetes, an absent selector matches nothing."""
    if selector is None:
        return (_NEVER,)
    return (
        *(
            types.Requirement(k, "In", (v,))
            for k, v in sorted((selector.match_labels or {}).items())
        ),
        *(requirement(each) for each in selector.match_expressions or ()),
    )


def requirement(each: pod_placement.SelectorRequirement) -> types.Requirement:
    return types.Requirement(each.key, each.operator, tuple(each.values or ()))
