"""How a pod says where it wants to be: affinity, spread, gates. `kinds.podspec` uses these.

Typed in full, because the scheduler reads them for every pod that it places; the embedded agent
does not look at them.
"""

from __future__ import annotations

import msgspec

from windlass.kinds.meta import Struct


class SelectorRequirement(Struct):
    """One condition on labels or fields."""

    key: str
    """The label's key, or the field's name."""
    operator: str
    """In, NotIn, Exists, DoesNotExist; of nodes also Gt and Lt."""
    values: list[str] | None = None
    """What the value is compared with."""


class LabelSelector(Struct):
    """Which objects, by their labels; all conditions must hold, and none at all selects all."""

    match_labels: dict[str, str] | None = None
    """Labels with these very values."""
    match_expressions: list[SelectorRequirement] | None = None
    """Further conditions."""


class NodeSelectorTerm(Struct):
    """Which nodes; all conditions must hold, and a term without any selects no node."""

    match_expressions: list[SelectorRequirement] | None = None
    """Conditions on the node's labels."""
    match_fields: list[SelectorRequirement] | None = None
    """Conditions on the node's fields: `metadata.name`."""


class NodeSelector(Struct):
    """Which nodes: those that any of the terms selects."""

    node_selector_terms: list[NodeSelectorTerm] | None = None
    """The terms."""


class PreferredNodes(Struct):
    """Nodes that are liked."""

    weight: int
    """How much, 1 to 100."""
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)
    """Which nodes."""


class NodeAffinity(Struct):
    """Which nodes a pod must or would like to be on."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    """Only these."""
    preferred: list[PreferredNodes] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )
    """Rather these."""


class PodAffinityTerm(Struct):
    """Near, or away from, pods with these labels, within one domain of the topology."""

    topology_key: str
    """The nodes' label that names the domain."""
    label_selector: LabelSelector | None = None
    """Which pods; none if absent."""
    namespaces: list[str] | None = None
    """In these namespaces; in the pod's own if neither this nor a selector is given."""
    namespace_selector: LabelSelector | None = None
    """And in namespaces with these labels."""
    match_label_keys: list[str] | None = None
    """Only pods that have the same value of these labels as this one."""
    mismatch_label_keys: list[str] | None = None
    """Only pods that have another value of these labels than this one."""


class PreferredPods(Struct):
    """Pods that are liked, or not."""

    weight: int
    """How much, 1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """Which pods, how near."""


class PodAffinity(Struct):
    """Which pods to be near to, or away from."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    """All of these must hold."""
    preferred: list[PreferredPods] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )
    """Better if these hold."""


class Affinity(Struct):
    """Where a pod must or would like to be."""

    node_affinity: NodeAffinity | None = None
    """On which nodes."""
    pod_affinity: PodAffinity | None = None
    """Near which pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Away from which pods."""


class TopologySpread(Struct):
    """How evenly pods with these labels are spread over the domains of a topology."""

    max_skew: int
    """By how many the fullest and the emptiest domain may differ."""
    topology_key: str
    """The nodes' label that names the domain."""
    when_unsatisfiable: str
    """DoNotSchedule or ScheduleAnyway."""
    label_selector: LabelSelector | None = None
    """Which pods are counted; none if absent."""
    min_domains: int | None = None
    """With fewer domains than this the emptiest counts as empty."""
    node_affinity_policy: str | None = None
    """Honor (if absent) or Ignore: whether nodes that the pod cannot be on count."""
    node_taints_policy: str | None = None
    """Ignore (if absent) or Honor: whether nodes whose taints it does not tolerate count."""
    match_label_keys: list[str] | None = None
    """Only pods that have the same value of these labels as this one."""


class SchedulingGate(Struct):
    """Something that must be done before the pod is placed."""

    name: str
    """Who will take the gate away."""
