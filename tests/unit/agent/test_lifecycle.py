"""Init containers, last words, deadlines and progress of pods."""

import json

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.nodes import ended
from windlass.agent.pods import progress
from windlass.kinds import annotations
from windlass.kinds.types import core


def init(script: str, **more) -> core.Container:
    return core.Container(name="prepare", image=nodes.HOST, command=["sh", "-c", script], **more)


async def test_an_init_container_that_fails_fails_the_pod_and_nothing_else_starts(node):
    await node.create("touch {here}/main", init_containers=[init("exit 3")])
    pod = await node.phase("Failed")
    (before,) = pod.status.init_container_statuses
    assert before.state.terminated.exit_code == 3
    (main,) = pod.status.container_statuses
    assert main.state.waiting.reason == "PodInitializing"
    assert not (node.folder / "main").exists()


async def test_an_init_container_is_started_again_if_the_pod_is(node):
    script = f"if [ -e {node.folder}/second ]; then exit 0; fi; touch {node.folder}/second; exit 1"
    await node.create("exit 0", init_containers=[init(script)], restart_policy="OnFailure")
    pod = await node.phase("Succeeded")
    (before,) = pod.status.init_container_statuses
    assert before.restart_count == 1


async def test_another_agent_goes_on_where_the_first_one_was(node):
    script = f"echo x >> {node.folder}/inits; while [ ! -e {node.folder}/go ]; do sleep 0.02; done"
    await node.create("echo x >> {here}/mains", init_containers=[init(script)])
    await node.there(node.folder / "inits")
    await node.restart()
    (node.folder / "go").touch()
    await node.phase("Succeeded")
    for name in ("inits", "mains"):
        assert (node.folder / name).read_text() == "x\n"


WORDS = {
    "plain": ("echo 'it broke' > $F; exit 1", "Error", "it broke"),
    "typed": (
        """echo '{"reason": "ImageOrEnvironmentFailed", "message": "no torch"}' > $F; exit 1""",
        "ImageOrEnvironmentFailed", "no torch",
    ),
    "a reason that is not its own to give": (
        """echo '{"reason": "NodeLost", "message": "hm"}' > $F; exit 1""", "Error", "hm",
    ),
    "of one that ended well": ("echo fine > $F", "Completed", "fine"),
    "none": ("exit 1", "Error", ""),
    "a link to what is not its own": ("rm -f $F; ln -s /etc/hostname $F; exit 1", "Error", ""),
}  # fmt: skip


@pytest.mark.parametrize(("script", "reason", "message"), WORDS.values(), ids=WORDS)
async def test_last_words(node, script, reason, message):
    await node.create(script.replace("$F", '"$WINDLASS_TERMINATION_LOG"'))
    pod = await node.until(lambda pod: pod.status.phase in ("Succeeded", "Failed"))
    assert (ended(pod).reason, ended(pod).message) == (reason, message)


async def test_last_words_at_a_place_of_the_pods_own(node):
    path = "/windlass/run/last"
    await node.create("echo bye > $WINDLASS_ROOT/run/last", termination_message_path=path)
    assert ended(await node.phase("Succeeded")).message == "bye"


async def test_the_end_of_the_log_when_there_are_no_last_words(node):
    policy = "FallbackToLogsOnError"
    await node.create("echo one; echo two >&2; exit 1", termination_message_policy=policy)
    message = ended(await node.phase("Failed")).message
    assert sorted(message.split()) == ["one", "two"]


async def test_a_pod_that_runs_too_long_is_ended_with_the_reason(node):
    await node.create("trap 'echo bye; exit 0' TERM; while :; do sleep 0.02; done",
                      active_deadline_seconds=1)  # fmt: skip
    pod = await node.phase("Failed")
    assert pod.status.reason == "DeadlineExceeded"
    assert ended(pod).exit_code == 0
    assert node.text(pod) == "bye\n"


async def test_a_pod_that_ended_in_time_is_not_late_however_late_it_is_reported(node):
    await node.create("while [ ! -e {here}/go ]; do sleep 0.02; done", active_deadline_seconds=1000)
    await node.phase("Running")
    await node.stop()
    (node.folder / "go").touch()
    pod = await node.phase("Running")
    await pods_end(node, pod)
    record = node.folder / "pods" / pod.uid / "containers/c/0/exit.json"
    ending = json.loads(record.read_text()) | {"finishedAt": "2026-01-01T00:10:00.000000Z"}
    record.write_text(json.dumps(ending))
    old = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
    await node.store.patch(core.Pod, "p", "team", patch=old, subresource="status")
    node.start()
    assert (await node.phase("Succeeded")).status.reason == ""


async def pods_end(node, pod: core.Pod) -> None:
    start = node.folder / "pods" / pod.uid / "containers/c/0"
    await node.there(start / "exit.json")


# --- progress


def told(pod: core.Pod) -> dict:
    return json.loads((pod.metadata.annotations or {}).get(annotations.PROGRESS, "{}"))


async def test_progress_reaches_the_pod_and_the_last_word_always_does(node):
    script = """
      echo '{"fraction": 0.25, "metrics": {"loss": 2.5}}' > $WINDLASS_PROGRESS
      while [ ! -e {here}/go ]; do sleep 0.02; done
      echo '{"fraction": 1}' > $WINDLASS_PROGRESS
    """
    await node.create(script)
    await node.until(lambda pod: told(pod) == {"fraction": 0.25, "metrics": {"loss": 2.5}})
    (node.folder / "go").touch()
    await node.phase("Succeeded")
    await node.until(lambda pod: told(pod) == {"fraction": 1})


async def test_progress_at_a_place_that_the_pod_chose(node):
    variable = core.EnvVar(name="WINDLASS_PROGRESS", value="$(WINDLASS_ROOT)/run/p.json")
    await node.create("echo '{\"fraction\": 0.5}' > $WINDLASS_PROGRESS", env=[variable])
    await node.phase("Succeeded")
    await node.until(lambda pod: told(pod) == {"fraction": 0.5})


PROGRESS = {
    '{"fraction": 0.5}': {"fraction": 0.5},
    '{"fraction": 7}': {"fraction": 1.0},
    '{"fraction": NaN, "metrics": {"a": 1, "b": "x", "c": true, "d": Infinity}}': {
        "metrics": {"a": 1}
    },
    '{"fraction": "half"}': {},
    '{"fraction": 0.': {},
    "[1]": {},
    "": {},
    '{"metrics": {"a": ' + "1" * 5000 + "}}": {},
}


@pytest.mark.parametrize(("text", "expected"), PROGRESS.items())
def test_what_is_read_of_progress(tmp_path, text, expected):
    (tmp_path / "p").write_text(text)
    assert json.loads(progress.read(str(tmp_path / "p"), None) or "{}") == expected


def test_progress_of_another_user_is_not_read(tmp_path):
    (tmp_path / "p").write_text('{"fraction": 0.5}')
    assert progress.read(str(tmp_path / "p"), 200_123) == ""
