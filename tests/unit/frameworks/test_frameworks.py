"""What replicas get, framework by framework: tables of a group in, names out."""

from __future__ import annotations

import json
import typing

import pytest

from windlass import frameworks
from windlass.frameworks import group as groups
from windlass.frameworks import group_file
from windlass.frameworks.group import Group, Member
from windlass.kinds.types import run


def group(
    *roles: tuple[str, int], command: tuple[str, ...] = ("python", "t.py"), **more: object
) -> Group:
    members: list[Member] = []
    gpus = more.pop("gpus", 0)
    for name, size in roles:
        for index in range(size):
            rank = len(members)
            members.append(
                Member(name, index, rank, f"10.0.0.{rank}", 20000 + 10 * rank, gpus=gpus)
            )
    return Group("job", "uid", 2, tuple(members), command, "/root", "/py", **more)


def told(name: str, which: Group, rank: int = 1) -> dict[str, str]:
    return dict(frameworks.render(name, which, which.members[rank]).variables)


def test_every_framework_that_a_run_may_name_is_there():
    assert set(frameworks.BY_NAME) == set(typing.get_args(run.Framework))


@pytest.mark.parametrize("name", ["process", "torch", "jax", "tensorflow", "deepspeed"])
def test_rank_size_and_hosts_have_the_usual_names(name):
    seen = told(name, group(("chief", 1), ("worker", 2)), 2)
    expected = {
        "WINDLASS_RANK": "2", "WINDLASS_SIZE": "3", "WINDLASS_ROLE_SIZE": "2",
        "WINDLASS_HOSTS": "10.0.0.0:20000,10.0.0.1:20010,10.0.0.2:20020",
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "20000", "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_NODEID": "2",
        "SLURM_JOB_NODELIST": "10.0.0.0,10.0.0.1,10.0.0.2", "SLURM_RESTART_COUNT": "2",
    }  # fmt: skip
    assert seen.items() >= expected.items()
    assert seen["SLURM_JOB_ID"].isdecimal()


@pytest.mark.parametrize("name", ["mpi", "horovod", "ray", "spark", "flink"])
def test_where_a_framework_starts_ranks_itself_no_member_gets_a_wrong_one(name):
    seen = told(name, group(("worker", 2)))
    assert not seen.keys() & {"RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_JOB_ID"}
    assert seen["WINDLASS_RANK"] == "1"


def test_a_member_without_a_port_gets_none():
    one = Group("job", "u", 0, (Member("worker", 0, 0, "10.0.0.1", 0),), ("x",), "/r", "/p")
    seen = told("process", one, 0)
    assert not seen.keys() & {"WINDLASS_PORT", "WINDLASS_HOSTS", "MASTER_PORT"}


def test_large_groups_are_not_listed_in_every_pod():
    seen = told("process", group(("worker", groups.MAX_LISTED + 1)))
    assert not seen.keys() & {"WINDLASS_HOSTS", "SLURM_JOB_NODELIST"}
    assert seen["MASTER_ADDR"] == "10.0.0.0"


def test_torchrun_needs_no_flags():
    seen = told("torch", group(("worker", 2), gpus=4))
    assert {k: v for k, v in seen.items() if k.startswith("PET_")} == {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.0", "PET_MASTER_PORT": "20000",
    }  # fmt: skip


def test_torchrun_of_members_that_come_and_go_meets_at_the_first():
    seen = told("torch", group(("worker", 4), least=2))
    assert seen["PET_NNODES"] == "2:4"
    assert (seen["PET_RDZV_BACKEND"], seen["PET_RDZV_ENDPOINT"]) == ("c10d", "10.0.0.0:20000")
    assert "PET_NODE_RANK" not in seen


def test_tf_config_has_the_roles_of_the_run():
    which = group(("master", 1), ("ps", 1), ("worker", 1), ("evaluator", 1))
    config = json.loads(told("tensorflow", which, 2)["TF_CONFIG"])
    assert config["cluster"] == {
        "chief": ["10.0.0.0:20000"], "ps": ["10.0.0.1:20010"], "worker": ["10.0.0.2:20020"],
    }  # fmt: skip
    assert config["task"] == {"type": "worker", "index": 0}
    assert json.loads(told("tensorflow", which, 3)["TF_CONFIG"])["task"]["type"] == "evaluator"


def test_jax_finds_its_coordinator_and_all_its_devices():
    seen = told("jax", group(("worker", 2), gpus=2))
    assert seen["JAX_COORDINATOR_ADDRESS"] == "10.0.0.0:20000"
    assert seen["JAX_LOCAL_DEVICE_IDS"] == "0,1"


def test_mpirun_is_written_if_the_user_does_not():
    which = group(("worker", 2), command=("./a.out", "x"), gpus=2)
    plan = json.loads(told("mpi", which, 0)["WINDLASS_PLAN"])
    assert plan["command"] == ["mpirun", "-n", "4", "/root/run/rank", "./a.out", "x"]
    own = group(("worker", 2), command=("mpirun", "-n", "8", "./a.out"))
    assert json.loads(told("mpi", own, 0)["WINDLASS_PLAN"])["command"] == list(own.command)
    files = frameworks.render("mpi", which, which.lead).files
    assert files["hostfile"] == "worker-0 slots=2\nworker-1 slots=2\n"
    assert files["hydra"] == "worker-0:2\nworker-1:2\n"


def test_a_launcher_of_its_own_role_does_no_work():
    which = group(("launcher", 1), ("worker", 2))
    assert frameworks.render("mpi", which, which.lead).files["hostfile"].count("worker") == 2
    assert "launcher" not in frameworks.render("mpi", which, which.lead).files["hostfile"]
    assert group(("launcher", 1)).workers == group(("launcher", 1)).members


def test_deepspeed_is_started_on_each_member_without_ssh():
    which = group(
        ("worker", 2), command=("deepspeed", "--master_port=7", "train.py", "--x"), gpus=2
    )
    rendered = frameworks.render("deepspeed", which, which.members[1])
    words = list(rendered.command)
    assert words[words.index("--") + 1 :] == [
        "deepspeed", "--no_ssh", "--hostfile=/root/run/hostfile", "--node_rank=1",
        "--master_addr=10.0.0.0", "--master_port=7", "train.py", "--x",
    ]  # fmt: skip
    plain = group(("worker", 2), command=("python", "train.py"))
    assert list(frameworks.render("deepspeed", plain, plain.lead).command)[-2:] == [
        "python",
        "train.py",
    ]


@pytest.mark.parametrize("name", ["mpi", "ray", "spark", "flink"])
def test_followers_do_what_the_lead_says(name):
    which = group(("worker", 3))
    lead, other = (frameworks.render(name, which, member) for member in which.members[:2])
    assert lead.command[-1] == "lead"
    assert other.command[-1] == "follow"
    assert "WINDLASS_PLAN" not in other.variables
    assert frameworks.BY_NAME[name].secret


def test_python_jobs_are_handed_to_flinks_cluster():
    which = group(("worker", 2), command=("python", "job.py", "--x"))
    command = json.loads(told("flink", which, 0)["WINDLASS_PLAN"])["command"]
    assert command[4:6] == ["run", "-pyclientexec"]
    assert command[-3:] == ["-py", "job.py", "--x"]


def test_a_group_comes_out_of_its_order_as_it_went_in():
    """Where addresses are not known yet the same is rendered inside the pod."""
    members = tuple(
        Member(role, index, rank, f"10.0.0.{rank}", 20000, gpus, cpus=2, memory=1 << 30)
        for rank, (role, index, gpus) in enumerate(
            [("chief", 0, 0), ("worker", 0, 2), ("worker", 1, 2)]
        )
    )
    whole = Group(
        run="job", uid="u1", attempt=3, members=members, command=("python", "a b.py"),
        root="/windlass", python="python3", companion="/windlass/run/companion.py", least=2,
    )  # fmt: skip
    sent = json.loads(json.dumps(group_file.write("torch", whole, members[2])))
    assert group_file.sizes(sent) == {"chief": 1, "worker": 2}
    book = {"worker": ["10.0.0.1", "10.0.0.2"], "chief": ["10.0.0.0"]}
    found, me = group_file.read(sent, book, "/windlass", "/windlass/run/companion.py")
    assert (found, me) == (whole, members[2])
