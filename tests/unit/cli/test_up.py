from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.invoking import invoke
from windlass.cli import exits, supervisor, up
from windlass.cli import state as states
from windlass.kinds import hostpods, kubernetes, meta


def test_gpus_and_racks_need_fake_nodes(tmp_path: Path) -> None:
    done = invoke("up", "--gpus", "8", "--state", str(tmp_path / "s"))
    assert done.code == exits.USAGE
    assert "--fake-nodes" in done.err
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
    real = kubernetes.Node(
        metadata=meta.ObjectMeta(name="a", annotations={hostpods.HELD: json.dumps(words)})
    )
    assert up._held(real) == words
    fake = kubernetes.Node(metadata=meta.ObjectMeta(name="b", labels={"windlass.dev/fake": "true"}))
    assert up._held(fake) == {}
    assert set(up._TEAMS) == {"user", "process"}
