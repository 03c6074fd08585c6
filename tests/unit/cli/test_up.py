from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.invoking import invoke
from windlass.cli.commands.engine import up
from windlass.cli.engine import supervisor
from windlass.cli.lib import exit_codes
from windlass.cli.lib import state_dir as states
from windlass.kinds.annotations import HELD
from windlass.kinds.types import core, meta


def test_gpus_and_racks_need_fake_nodes(tmp_path: Path) -> None:
    done = invoke("up", "--gpus", "8", "--state", str(tmp_path / "s"))
    assert done.code == exit_codes.USAGE
    assert "--fake-nodes" in done.err
    assert not (tmp_path / "s").exists()


def test_limits_of_jobs_reach_the_agent_and_bad_ones_are_refused(tmp_path: Path) -> None:
    folder = states.folder(str(tmp_path))
    _, agent = supervisor.engine(folder, "", job_limits=["disk=1Gi", "files=99"])
    assert agent.argv[-4:] == ["--job-limit", "disk=1Gi", "--job-limit", "files=99"]
    done = invoke("up", "--job-limit", "memory=1Gi", "--state", str(tmp_path / "s"))
    assert done.code == exit_codes.USAGE
    assert "--job-limit memory=1Gi is no limit" in done.err
    assert not (tmp_path / "s").exists()


def test_the_agent_gets_its_own_kubeconfig_and_fakes_the_admins(tmp_path: Path) -> None:
    folder = states.folder(str(tmp_path))
    server, agent = supervisor.engine(folder, "")
    assert str(tmp_path / "agent/kubeconfig") in agent.argv
    fake = supervisor.fakes(folder, server, 16, 8, 4)
    assert str(folder.kubeconfig) in fake.argv
    assert fake.argv[-6:] == ["--nodes", "16", "--gpus", "8", "--racks", "4"]
    assert not fake.ready()


def test_what_a_node_holds_is_read_from_its_annotation() -> None:
    words = {"isolation": "process", "limits": "counted"}
    real = core.Node(metadata=meta.ObjectMeta(name="a", annotations={HELD: json.dumps(words)}))
    assert up._held(real) == words
    fake = core.Node(metadata=meta.ObjectMeta(name="b", labels={"windlass.dev/fake": "true"}))
    assert up._held(fake) == {}
    assert set(up._TEAMS) == {"user", "process"}
