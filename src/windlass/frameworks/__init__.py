"""How the members of a run find each other: one small module per framework, each pure.

A `group.Group` of members with their addresses goes in; variables, files and the command of one
member come out. Nothing here reads a clock, a file or a socket, except `companion`, which is the
program that runs inside pods.
"""

from __future__ import annotations

import dataclasses

from windlass.frameworks import (
    deepspeed,
    flink,
    jax,
    mpi,
    process,
    ray,
    spark,
    tensorflow,
    torch,
)
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
"""By the word in `spec.framework`. Horovod's ranks are MPI's."""


def render(name: str, group: Group, member: Member) -> Rendered:
    """What one member of a run needs to find the others."""
    framework = BY_NAME[name]
    rendered = framework.render(group, member)
    common = group.variables(member, ranks=not framework.starts_ranks)
    return dataclasses.replace(rendered, variables={**common, **rendered.variables})
