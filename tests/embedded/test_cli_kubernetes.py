"""The object commands against a real kube-apiserver: same words, same exit codes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.control_plane import ControlPlane
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes

pytestmark = pytest.mark.kubernetes

RUN = """\
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata: {name: NAME}
spec:
  roles:
  - command: [sleep, "1"]
"""
QUEUE = "{apiVersion: windlass.dev/v1alpha1, kind: Queue, metadata: {name: NAME}, spec: {SPEC}}"
Windlass = Callable[..., Result]


@pytest.fixture
def windlass(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Windlass:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WINDLASS_KUBECONFIG", str(control_plane.kubeconfig))
    return invoke


def action(result: Result) -> list[str]:
    assert result.code == exit_codes.OK, result.err
    return [one["action"] for one in result.json["results"]]


def test_apply_three_ways(windlass: Windlass) -> None:
    def apply(spec: str) -> list[str]:
        text = QUEUE.replace("NAME", "cli-steps").replace("SPEC", spec)
        return action(windlass("apply", "--json", "-f", "-", stdin=text))

    assert apply("weight: 2, strict: true") == ["created"]
    assert apply("weight: 2, strict: true") == ["unchanged"]
    assert apply("weight: 3") == ["configured"]
    spec = windlass("get", "queue", "cli-steps", "--json").json["spec"]
    assert spec["weight"] == 3
    assert not spec.get("strict")


def test_apply_of_a_run_twice_changes_nothing(windlass: Windlass) -> None:
    text = RUN.replace("NAME", "cli-twice")
    assert action(windlass("apply", "--json", "-f", "-", stdin=text)) == ["created"]
    assert action(windlass("apply", "--json", "-f", "-", stdin=text)) == ["unchanged"]


def test_kubectl_and_windlass_apply_the_same_file(
    windlass: Windlass, control_plane: ControlPlane, kubernetes_binaries: Path, tmp_path: Path
) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text(QUEUE.replace("NAME", "cli-both").replace("SPEC", "weight: 2, reserve: 3"))
    kubectl = [str(kubernetes_binaries / "kubectl"), f"--kubeconfig={control_plane.kubeconfig}"]
    subprocess.run([*kubectl, "apply", "-f", file], check=True)
    file.write_text(QUEUE.replace("NAME", "cli-both").replace("SPEC", "weight: 5"))
    assert action(windlass("apply", "--json", "-f", file)) == ["configured"]
    assert windlass("get", "queue", "cli-both", "--json").json["spec"].get("reserve") in (None, 1)
    done = subprocess.run(
        [*kubectl, "apply", "-f", file], check=True, capture_output=True, text=True
    )
    assert done.stdout == "queue.windlass.dev/cli-both unchanged\n"


def test_get_edit_delete(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    text = QUEUE.replace("NAME", "cli-life").replace("SPEC", "weight: 2")
    windlass("apply", "-f", "-", stdin=text)
    monkeypatch.setenv("EDITOR", "sed -i 's/weight: 2/weight: 6/'")
    assert windlass("edit", "queue", "cli-life").out == "queue/cli-life edited\n"
    table = windlass("get", "queues").out.splitlines()
    assert [line.split()[3] for line in table if line.startswith("cli-life ")] == ["6"]
    assert windlass("delete", "queue", "cli-life").code == exit_codes.OK
    gone = windlass("get", "queue", "cli-life")
    assert gone.code == exit_codes.NOT_FOUND
    assert "cli-life" in gone.err


def test_what_the_server_alone_refuses_is_one_sentence(windlass: Windlass) -> None:
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: cli-bad}, spec: {containers: []}}"
    result = windlass("apply", "-f", "-", stdin=pod)
    assert result.code == exit_codes.INVALID
    assert "spec.containers" in result.err
    assert "Traceback" not in result.err


def test_doctor_names_the_cluster_and_the_rights(windlass: Windlass) -> None:
    checks = {check["name"]: check for check in windlass("doctor", "--json").json["checks"]}
    assert checks["kubernetes"]["state"] == "ok"
    assert "v1.36" in checks["kubernetes"]["found"]


def test_status_shows_a_cluster_that_is_not_of_this_machine(windlass: Windlass) -> None:
    shown = windlass("status")
    assert shown.code == exit_codes.FAILED
    assert "Kubernetes v1." in shown.out
    assert "Windlass is not installed on this cluster" in shown.err
