"""What can be said of a job in words: the keyword arguments of `windlass.run` and its kin.

One list for `windlass.run`, `Client.runs.submit`, `Executor` and, through `runs.build`, the
command line. Each word has one place in the Run object; what has no word here is written in the
object itself (`Client.apply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from windlass.kinds import run


class Options(TypedDict, total=False):
    """Words for a job. All of them may be left out."""

    # who and how many
    name: str
    """Of the run. Default: made from the command."""
    workers: int
    """Members that run the command."""
    min_workers: int
    """Elastic: starts with this many, shrinks to it before it is preempted, grows again."""
    resize: Literal["restart", "live"]
    """How an elastic run changes its size."""
    framework: run.Framework
    """How members find each other: torch, mpi, jax, ray ..."""

    # what each member holds
    cpus: float | str
    """Cores of each worker: 2, 0.5, "500m"."""
    memory: str
    """Of each worker, shared memory included: "4Gi"."""
    shm: str
    """Size of /dev/shm: "2Gi". Default: half of the memory."""
    gpus: float | str
    """GPUs of each worker: 2; a share of one: "1/4"."""
    gpu_models: Sequence[str]
    """Models that will do, best first: ["h100", "a100"]."""
    devices: Mapping[str, int]
    """Other devices of each worker: {"rdma": 1}."""
    ports: Mapping[str, int]
    """Ports that members listen on, by name."""

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
    """Path in the job -> what is there: {"/data": "claim:imagenet", "/x": "host:/x:ro"}."""

    # the queue
    queue: str
    priority: int
    preemptible: bool
    suspend: bool
    """Hand it in, but hold it until it is released."""
    user: str

    # where
    gang: bool
    """False: members start as room comes. Default: all together or none."""
    pack: Literal["binpack", "spread", "fragmentation"]
    topology: str
    """Keep members within one "rack" if possible; "rack!" waits rather than spread."""
    movable: bool
    """It may be stopped and started on other nodes so that a waiting run fits."""
    nodes: Mapping[str, str]
    """Labels that a node must have."""
    tolerations: Sequence[str]
    """Taints that are accepted: "key", "key=value", "key=value:NoSchedule"."""

    # time and trouble
    expected: str
    """Your estimate of how long it takes: "2h". Lets it be fitted into gaps."""
    timeout: str
    """Running longer ends the attempt: "12h"."""
    start_timeout: str
    """All members must run this soon after they got room."""
    retries: int
    """Further attempts, at most."""
    retry_on: Sequence[run.RetryCause]
    """What is worth one: NodeLost, Preempted, Failed."""
    restart: Literal["pod", "role", "run"]
    """What starts again when a member fails."""
    signal: run.Signal
    """Asks for a checkpoint and an end."""
    grace: str
    """Between the signal and SIGKILL: "30s"."""
    checkpoint: str
    """Where checkpoints lie; `windlass.context().checkpoint` in the job."""
    keep: str
    """The record is deleted this long after the end: "1h". Default: kept."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Of the run and its pods."""
