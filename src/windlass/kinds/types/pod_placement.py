"""Placement constraints of a pod: affinity, topology spread, scheduling gates.

All fields are typed, because the scheduler reads them for every pod that it places. The embedded
agent does not use them.
"""

from __future__ import annotations

import msgspec

from windlass.kinds.types.meta import Struct


class SelectorRequirement(Struct):
    """One condition on labels or fields."""

    key: str
    """The label's key, or the field's name."""
    operator: str
    """In, NotIn, Exists, DoesNotExist; of nodes also Gt and Lt."""
    values: list[str] | None = None
    """Values to compare with."""


class LabelSelector(Struct):
    """Selects objects by their labels; all conditions must hold. Without conditions it selects
    all."""

    match_labels: dict[str, str] | None = None
    """Labels with exact values."""
    match_expressions: list[SelectorRequirement] | None = None
    """Further conditions."""


class NodeSelectorTerm(Struct):
    """Selects nodes; all conditions must hold. A term without conditions selects no node."""

    match_expressions: list[SelectorRequirement] | None = None
    """Conditions on the node's labels."""
    match_fields: list[SelectorRequirement] | None = None
    """Conditions on the node's fields: `metadata.name`."""


class NodeSelector(Struct):
    """Selects the nodes that any of the terms selects."""

    node_selector_terms: list[NodeSelectorTerm] | None = None
    """The terms."""


class PreferredNodes(Struct):
    """Preferred nodes."""

    weight: int
    """Weight, 1 to 100."""
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)
    """Which nodes."""


class NodeAffinity(Struct):
    """Required and preferred nodes of a pod."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    """Required nodes."""
    preferred: list[PreferredNodes] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )
    """Preferred nodes."""


class PodAffinityTerm(Struct):
    """A topology domain with, or without, pods with these labels."""

    topology_key: str
    """The nodes' label that names the domain."""
    label_selector: LabelSelector | None = None
    """Selected pods; none if absent."""
    namespaces: list[str] | None = None
    """Namespaces of the pods. Default: the pod's own, unless a selector is given."""
    namespace_selector: LabelSelector | None = None
    """Selects further namespaces by their labels."""
    match_label_keys: list[str] | None = None
    """Only pods that have the same value of these labels as this one."""
    mismatch_label_keys: list[str] | None = None
    """Only pods that have another value of these labels than this one."""


class PreferredPods(Struct):
    """A weighted preference."""

    weight: int
    """Weight, 1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """Pods and topology domain."""


class PodAffinity(Struct):
    """Required and preferred affinity, or anti-affinity, to pods."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    """Required terms."""
    preferred: list[PreferredPods] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )
    """Preferred terms."""


class Affinity(Struct):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    """Affinity to nodes."""
    pod_affinity: PodAffinity | None = None
    """Affinity to pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Anti-affinity to pods."""


class TopologySpread(Struct):
    """How evenly pods with these labels are spread over the domains of a topology."""

    max_skew: int
    """Maximum difference between the domains with the most and the fewest pods."""
    topology_key: str
    """The nodes' label that names the domain."""
    when_unsatisfiable: str
    """DoNotSchedule or ScheduleAnyway."""
    label_selector: LabelSelector | None = None
    """Counted pods; none if absent."""
    min_domains: int | None = None
    """With fewer domains than this the minimum counts as 0."""
    node_affinity_policy: str | None = None
    """Honor (default) or Ignore: whether only nodes that match the pod's node affinity count."""
    node_taints_policy: str | None = None
    """Ignore (default) or Honor: whether only nodes whose taints the pod tolerates count."""
    match_label_keys: list[str] | None = None
    """Only pods that have the same value of these labels as this one."""


class SchedulingGate(Struct):
    """A gate that must be removed before the pod is scheduled."""

    name: str
    """Name of the gate, by the controller that removes it."""
