"""Frameworks of distributed jobs: one small, pure module for each.

A module turns a `group.Group` of members with their addresses into the variables, files and command
of one member. Only `companion`, the program that runs inside pods, does I/O.
"""

from __future__ import annotations

import dataclasses

from windlass.frameworks import deepspeed, flink, jax, mpi, process, ray, spark, tensorflow, torch
from windlass.frameworks.group import Framework, Group, Member, Rendered

BY_NAME: dict[str, Framework] = {
    "process": process.FRAMEWORK,
    "torch": torch.FRAMEWORK,
    "mpi": mpi.FRAMEWORK,
    "horovod": mpi.FRAMEWORK,
    "tensorflow": tensorflow.FRAMEWORK,
    "jax": jax.FRAMEWORK,
    "ray": ray.FRAMEWORK,
    "deepspeed": deepspeed.FRAMEWORK,
    "spark": spark.FRAMEWORK,
    "flink": flink.FRAMEWORK,
}
"""By the value of `spec.framework`. Horovod is started by MPI."""


def render(name: str, group: Group, member: Member) -> Rendered:
    """The variables, files and command with which a member of a run finds the others."""
    framework = BY_NAME[name]
    rendered = framework.render(group, member)
    common = group.variables(member, ranks=not framework.starts_ranks)
    return dataclasses.replace(rendered, variables={**common, **rendered.variables})
