"""Annotations and variables that controllers write on pods for the node agent, and those that the
agent writes."""

from __future__ import annotations

from typing import Final

HOST_IMAGE: Final = "windlass.dev/host"
"""The image of a pod that runs on the node's own file system."""

SUBMISSION: Final = "windlass.dev/submission"
"""Annotation on Runs, written by the client: a random mark by which a client that sends a request
again recognises the Run that its first request created."""

PINNED: Final = "windlass.dev/pinned"
"""Annotation on Runs, `true`: the Run and its outputs are not deleted when their time is up."""

OUTPUTS_QUOTA: Final = "windlass.dev/outputs-quota"
"""Annotation on Namespaces: how many bytes of outputs its Runs keep together, as `50Gi`."""

STOP_SIGNAL: Final = "windlass.dev/stop-signal"
"""Annotation: the signal that asks the pod's processes to exit. SIGTERM if absent."""

ROOT: Final = "/windlass"
"""The pod's own folder, as pods name it. `ROOT_VARIABLE` has its path on the node."""

ROOT_VARIABLE: Final = "WINDLASS_ROOT"
"""Environment variable, always set by the agent: the path of `ROOT` on this node."""

TEAM: Final = "/windlass/team"
"""A hostPath below this is a folder of the namespace on the node. The agent creates it for the
first pod that names it, keeps it after its pods, and closes it to other namespaces."""

PROGRESS: Final = "windlass.dev/progress"
"""Annotation, written by the agent: the last progress that the job reported, as JSON."""

GRANTED: Final = "windlass.dev/granted-devices"
"""Annotation, written by the agent on a cluster's node: which devices kubelet gave the pod, as
JSON: resource -> ids."""

SHARED_MEMORY_FULL: Final = "windlass.dev/shared-memory-full"
"""Annotation, written by the agent on a cluster's node: the pod's /dev/shm was seen full."""

PROGRESS_VARIABLE: Final = "WINDLASS_PROGRESS"
"""Environment variable: the file that a job writes its progress to. The agent sets it if the pod
does not."""

TERMINATION_VARIABLE: Final = "WINDLASS_TERMINATION_LOG"
"""Environment variable, set by the agent: the file for the termination message, where it cannot be
at `terminationMessagePath` itself. Absent on Kubernetes."""

PORTS: Final = "windlass.dev/ports"
"""Annotation: first and last port of the attempt's block, `20000-20007`. The agent refuses a pod
if a process outside of the attempt listens on one of its ports (reason PortTaken)."""

SCRATCH: Final = "windlass.dev/scratch"
"""Annotation: a folder `/tmp/wl-...` that pods of the attempt share beside their own folders; the
agent removes it with the last pod."""

PRETEND: Final = "windlass.dev/pretend"
"""Annotation for fake nodes: `SECONDS[:EXIT CODE]` of the pod's simulated run."""

HELD: Final = "windlass.dev/held"
"""Annotation on Nodes, written by the agent: the limits that it enforces on pods, as JSON text."""

OF_AGENTS: Final = (PROGRESS, GRANTED, SHARED_MEMORY_FULL)
"""What the agent on a cluster's node writes on pods, and all that it may write there."""
