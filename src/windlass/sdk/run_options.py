"""The options of a run: the keyword arguments of `windlass.run`.

`windlass.run`, `Client.runs.submit`, `Executor` and, through `run_builder.build`, the command line
share them. Each option sets one field of the Run. For other fields write the object itself
(`Client.apply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from windlass.kinds.types import run


class Options(TypedDict, total=False):
    """Options of a run. All are optional."""

    # name and size
    name: str
    """Name of the run. Default: from the command."""
    workers: int
    """Number of replicas that run the command."""
    min_workers: int
    """Minimum of an elastic run: it starts with this many, and shrinks before it is preempted."""
    resize: Literal["restart", "live"]
    """How an elastic run resizes."""
    framework: run.Framework
    """How replicas find each other: torch, mpi, jax, ray ..."""

    # resources of each replica
    cpus: float | str
    """CPU cores per replica: 2, 0.5, "500m"."""
    memory: str
    """Memory per replica, shared memory included: "4Gi"."""
    shm: str
    """Size of /dev/shm: "2Gi". Default: half of the memory."""
    disk: str
    """Disk for files that go with a replica: "20Gi". Default: the limit of the node."""
    gpus: float | str
    """GPUs per replica: 2; a share of one: "1/4"."""
    gpu_models: Sequence[str]
    """Accepted GPU models, best first: ["h100", "a100"]."""
    devices: Mapping[str, int]
    """Other devices per replica: {"rdma": 1}."""
    ports: Mapping[str, int]
    """Ports that replicas listen on, by name."""

    # software, code and data
    image: str
    python: str
    requirements: Sequence[str]
    """Python packages, as in requirements.txt."""
    setup: str
    """A shell script that runs once before the command."""
    code: str
    """Digest of an uploaded working folder; `workdir` does the upload."""
    env: Mapping[str, str]
    secrets: Sequence[str]
    """Secrets whose values become variables."""
    configs: Sequence[str]
    """ConfigMaps whose values become variables."""
    mounts: Mapping[str, str]
    """Mount path -> source: {"/data": "claim:imagenet", "/x": "host:/x:ro"}."""

    # the queue
    queue: str
    priority: int
    preemptible: bool
    suspend: bool
    """Submit the run suspended."""
    user: str

    after: Sequence[Any]
    """Runs that must have ended before: handles, or names as "prepare", "prepare:any",
    "prepare:failed". Default: they must have succeeded."""
    array: str
    """Run it once for each index: "0-99", at most eight at a time: "0-99%8"."""

    # where
    gang: bool
    """False: replicas start one by one as capacity is free. Default: all together or none."""
    pack: Literal["binpack", "spread", "fragmentation"]
    topology: str
    """Keep replicas within one "rack" if possible; "rack!" waits until they fit into one."""
    movable: bool
    """The run may be restarted on other nodes so that a waiting run fits."""
    nodes: Mapping[str, str]
    """Labels that a node must have."""
    tolerations: Sequence[str]
    """Tolerated taints: "key", "key=value", "key=value:NoSchedule"."""

    # time and failures
    expected: str
    """Expected duration: "2h". Allows backfill."""
    timeout: str
    """Maximum duration of an attempt: "12h"."""
    start_timeout: str
    """Time from the assignment in which all replicas must start."""
    retries: int
    """Maximum number of retries."""
    retry_on: Sequence[run.RetryCause]
    """Causes to retry: NodeLost, Preempted, Failed."""
    restart: Literal["pod", "role", "run"]
    """What restarts when a replica fails."""
    signal: run.Signal
    """Signal to save a checkpoint and exit."""
    grace: str
    """Time from the signal to SIGKILL: "30s"."""
    checkpoint: str
    """Folder of the checkpoints; `windlass.context().checkpoint` in the job."""
    outputs: Sequence[str]
    """Files that are collected when a replica ends, and kept with the run: ["out", "*.pt"];
    "out:end,checkpoint" says when."""
    keep: str
    """Delete the record this long after the end: "1h". Default: never."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Annotations of the run and its pods."""
