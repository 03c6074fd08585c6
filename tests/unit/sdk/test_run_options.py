"""Words for a job become a Run; the examples in docstrings hold; `import windlass` stays light."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import subprocess
import sys
from typing import Any, cast

import pytest

import windlass
from windlass.kinds import codec, validate
from windlass.kinds.types import run
from windlass.sdk import async_client, run_builder
from windlass.sdk.run_options import Options


@pytest.mark.parametrize("module", ["sdk.run_builder", "injob.library.windlass.job_context"])
def test_examples_in_docstrings_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"windlass.{module}"))
    assert results.attempted
    assert not results.failed


def test_memory_without_a_unit_is_refused_and_a_gpu_model_alone_is_one_gpu() -> None:
    with pytest.raises(windlass.errors.Invalid, match=r"at least 1Mi; .* did you mean 4Gi\?"):
        async_client.check(["true"], {"memory": "4"})
    with pytest.raises(windlass.errors.Invalid, match="did you mean 4G or 4Gi"):
        async_client.check(["true"], {"memory": "4GB"})
    [device] = run_builder.build(["true"], gpu_models=["h100"]).spec.roles[0].devices or []
    assert (device.kind, device.count, device.models) == ("gpu", 1, ["h100"])


def test_every_word_has_a_place_in_a_valid_run() -> None:
    words: Options = {
        "name": "all", "workers": 4, "min_workers": 2, "resize": "live", "framework": "torch",
        "cpus": 0.5, "memory": "4Gi", "shm": "1Gi", "disk": "9Gi", "gpus": 2,
        "gpu_models": ["h100"],
        "devices": {"rdma": 1}, "ports": {"http": 8080}, "python": "3.11",
        "requirements": ["torch"], "setup": "true", "code": "sha256:" + "0" * 64,
        "env": {"A": "b"}, "secrets": ["s"], "configs": ["c"],
        "mounts": {"/data": "claim:imagenet:ro", "/x": "host:/x"}, "queue": "q", "priority": 7,
        "preemptible": False, "suspend": True, "user": "me", "gang": False, "pack": "spread",
        "movable": True, "topology": "rack!", "nodes": {"zone": "a"},
        "tolerations": ["spot", "gpu=yes:NoSchedule"], "expected": "1h", "timeout": "2h",
        "start_timeout": "5m", "retries": 1, "retry_on": ["Failed"], "restart": "role",
        "signal": "SIGUSR1", "grace": "1m", "checkpoint": "/ck", "keep": "1h",
        "outputs": ["out", "*.pt:end,checkpoint"],
        "labels": {"team": "a"}, "annotations": {"note": "x"}, "image": "busybox",
        "after": ["prepare:any"], "array": "0-9%2",
    }  # fmt: skip
    assert set(words) == set(Options.__annotations__)
    # An array has no outputs, so they are built alone.
    together: Options = {**words, "outputs": []}
    made = run_builder.build(["python", "t.py"], namespace="default", **together)
    value = validate.defaulted(run.Run, codec.to_dict(made))
    assert not validate.validate(run.Run, value)
    plain = codec.to_dict(run_builder.build(["python", "t.py"], name="all", namespace="default"))
    for word in words.keys() - {"name"}:
        one: Options = {"name": "all", word: words[word]}
        changed = codec.to_dict(run_builder.build(["python", "t.py"], namespace="default", **one))
        assert changed != plain or word == "gpu_models", word
    spec = made.spec
    assert spec.placement.topology == run.Topology(level="rack", mode="required")
    assert spec.mounts == [
        run.Mount(source="claim:imagenet", path="/data", read_only=True),
        run.Mount(source="host:/x", path="/x"),
    ]
    assert spec.placement.nodes is not None
    assert spec.placement.nodes.tolerations == [
        run.Toleration(key="spot", operator="Exists"),
        run.Toleration(key="gpu", value="yes", effect="NoSchedule"),
    ]
    assert spec.roles[0].resources.cpu == "0.5"


def test_dependencies_are_names_conditions_or_handles() -> None:
    class Handle:
        name = "train"

    spec = run_builder.build(["x"], after=["prep", "load:any", Handle()]).spec
    assert spec.after == [
        run.After(run="prep"), run.After(run="load", when="any"), run.After(run="train"),
    ]  # fmt: skip


def test_an_array_has_its_limit_apart_and_a_wrong_one_is_refused() -> None:
    assert run_builder.build(["x"], array="0-99:2%8").spec.array == run.Array(
        indices="0-99:2", parallelism=8
    )
    with pytest.raises(ValueError, match="lower end first"):
        run_builder.build(["x"], array="9-3")


@pytest.mark.parametrize(("asked", "share"), [("1/4", "1/4"), (0.25, "1/4"), (0.1, "1/10")])
def test_a_part_of_a_gpu_is_a_share(asked: float | str, share: str) -> None:
    (device,) = run_builder.build(["x"], gpus=asked).spec.roles[0].devices or []
    assert (device.share, device.count) == (share, None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("cpu", "cpus"), ("gpu", "gpus"), ("worker", "workers"), ("mem", "memory"), ("Name", "name")],
)
def test_an_unknown_option_is_reported_with_the_option_that_it_resembles(
    given: str, meant: str
) -> None:
    options: Any = {given: 1}
    with pytest.raises(
        TypeError, match=rf"^{given} is not an option of a run; did you mean {meant}\?$"
    ):
        run_builder.build(["x"], **options)
    with pytest.raises(TypeError, match=rf"did you mean {meant}\?"):
        windlass.Executor(**options)


def test_an_executor_names_the_option_for_its_number_of_workers() -> None:
    with pytest.raises(TypeError, match="did you mean max_workers"):
        windlass.Executor(workers=2)


def test_an_option_that_resembles_none_is_reported_with_all_options() -> None:
    options: Any = {"xyzzy": 1}
    with pytest.raises(TypeError, match=r"xyzzy is not an option of a run; options are .*gpus"):
        run_builder.build(["x"], **options)


def test_unknown_options_of_a_function_are_refused_before_anything_is_sent() -> None:
    class Untouched:
        """A client that fails as soon as anything of it is used."""

    options: Any = {"workdir": "/nowhere", "lr": 0.1}
    runs = async_client.AsyncRuns(cast(Any, Untouched()))
    with pytest.raises(TypeError, match=r"lr is not .* functools\.partial"):
        asyncio.run(runs.submit(print, **options))


def test_what_no_server_would_take_is_refused_before_one_is_asked() -> None:
    with pytest.raises(windlass.errors.Invalid, match=r"memory.*lots") as refused:
        async_client.check(["x"], {"memory": "lots"})
    assert [cause.field for cause in refused.value.causes] == ["spec.roles[0].resources.memory"]


def test_a_state_folder_without_an_engine_says_how_to_start_one() -> None:
    with pytest.raises(windlass.errors.Unavailable, match="windlass up --state /no/such"):
        windlass.Client(state="/no/such")


def test_importing_windlass_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import windlass; windlass.report(0.1);"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "windlass.injob.library.windlass.job_context" in loaded
    heavy = ("aiohttp", "msgspec", "numpy", "asyncio", "yaml", "click", "cloudpickle", "ssl")
    assert not [name for name in loaded if name.partition(".")[0] in heavy]


def test_all_that_is_offered_is_there() -> None:
    assert {"run", "Executor", "Client", "report"} <= set(dir(windlass))
    for name in windlass._LAZY:
        assert getattr(windlass, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        windlass.nothing  # noqa: B018
