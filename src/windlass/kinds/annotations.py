"""What controllers write on pods for the embedded agent to read, and what it writes back."""

from __future__ import annotations

from typing import Final

HOST_IMAGE: Final = "windlass.dev/host"
"""The image of a pod that runs on the node's own files."""

STOP_SIGNAL: Final = "windlass.dev/stop-signal"
"""Annotation: the signal that asks the pod's processes to end. SIGTERM when absent."""

ROOT: Final = "/windlass"
"""The pod's own folder, as pods name it. Where it really is, `ROOT_VARIABLE` says."""

ROOT_VARIABLE: Final = "WINDLASS_ROOT"
"""Environment variable, set by the agent whatever the pod says: where `ROOT` is on this node."""

TEAM: Final = "/windlass/team"
"""A hostPath below this is a folder of the namespace on the node: made when it is first named,
kept when its pods are gone, closed to other namespaces."""

PROGRESS: Final = "windlass.dev/progress"
"""Annotation, written by the agent: what the job last said of its progress, as JSON."""

GRANTED: Final = "windlass.dev/granted-devices"
"""Annotation, written by the agent on a cluster's node: which devices kubelet gave the pod, as
JSON: resource -> ids."""

SHARED_MEMORY_FULL: Final = "windlass.dev/shared-memory-full"
"""Annotation, written by the agent on a cluster's node: the pod's /dev/shm was seen full."""

PROGRESS_VARIABLE: Final = "WINDLASS_PROGRESS"
"""Environment variable: the file that a job writes its progress to. The agent sets it if the pod
does not."""

TERMINATION_VARIABLE: Final = "WINDLASS_TERMINATION_LOG"
"""Environment variable, set by the agent: the file for a container's last words, where it cannot
be at `terminationMessagePath` itself. Absent on Kubernetes."""

PORTS: Final = "windlass.dev/ports"
"""Annotation: first and last port of the attempt's block, `20000-20007`. The agent refuses a pod
one of whose ports somebody outside of the attempt listens on (reason PortTaken)."""

SCRATCH: Final = "windlass.dev/scratch"
"""Annotation: a folder `/tmp/wl-...` that members of the attempt make beside their own folders; the
agent removes it with the last of them."""

PRETEND: Final = "windlass.dev/pretend"
"""Annotation for fake nodes: `SECONDS[:EXIT CODE]` that the pod pretends to run."""

HELD: Final = "windlass.dev/held"
"""Annotation on Nodes, written by the agent: what it can hold pods to, as JSON for people."""
