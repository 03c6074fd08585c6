"""Environments of a team as they are really made: once, by which run, and the message if they are
not.

A package of the working folder is built by a backend of its own, which waits until the test lets it
go: so builds can be looked at, and killed, while they are under way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, only_with_images, said
from tests.harness import images
from tests.harness.waiting import until
from windlass.kinds.types import core

LABEL = "windlass.dev/environment"
WORDS: dict[str, Any] = {"cpus": "500m", "memory": "256Mi", "env": {"UV_OFFLINE": "1"}}

BACKEND = """
import base64, hashlib, pathlib, time, zipfile
def build_wheel(folder, settings=None, metadata=None):
    gate = pathlib.Path({gate!r})
    (gate / f"began-{{time.time_ns()}}").touch()
    while not (gate / "go").exists():
        time.sleep(0.05)
    files = {{
        "slowly.py": "VALUE = 42\\n",
        "slowly-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: slowly\\nVersion: 1\\n",
        "slowly-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\n"
        "Root-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    def line(name, text):
        seen = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        return f"{{name}},sha256={{seen.decode()}},{{len(text)}}\\n"
    listed = "".join(line(*each) for each in files.items())
    files["slowly-1.dist-info/RECORD"] = listed + "slowly-1.dist-info/RECORD,,\\n"
    with zipfile.ZipFile(pathlib.Path(folder) / "slowly-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "slowly-1-py3-none-any.whl"
"""


def a_package(folder: Path, gate: Path) -> dict[str, Any]:
    """What a run needs that has it in its working folder."""
    inside = folder / "slowly"
    inside.mkdir()
    (inside / "pyproject.toml").write_text(
        '[project]\nname = "slowly"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (inside / "backend.py").write_text(BACKEND.format(gate=str(gate)))
    (folder / "job.py").write_text("import slowly, sys; print(slowly.VALUE, sys.prefix)\n")
    return {"workdir": folder, "requirements": ["./slowly"], **WORDS}


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    made = tmp_path / "gate"
    made.mkdir()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    return made


def builders(client: windlass.Client) -> list[core.Pod]:
    return list(client.list("pod", labels=LABEL))


def test_runs_that_want_the_same_at_once_wait_for_one_build(
    engine: Embedded, client: windlass.Client, folder: Path, gate: Path
) -> None:
    words = a_package(folder, gate) | engine.sees(gate)
    handles = [client.run(["python", "job.py"], name=f"same-{n}", **words) for n in range(2)]
    until(lambda: list(gate.glob("began-*")), "it is being built")
    if engine.images:
        until(lambda: all("has built its" in h.status.message for h in handles), "both wait")
        (builder,) = builders(client)
        assert not client.list("pod", labels="windlass.dev/run=same-0"), "no member runs idle"
        assert builder.metadata.owner_references
    (gate / "go").touch()
    first, second = (said(handle) for handle in handles)
    assert first == second, "the very same environment"
    assert first[0].startswith("42 ")
    assert len(list(gate.glob("began-*"))) == 1
    third = client.run(["python", "job.py"], **words)
    assert said(third) == first
    assert len(list(gate.glob("began-*"))) == 1
    if engine.images:
        assert len(builders(client)) == 1, "that it is there was known"


def test_another_takes_over_from_a_builder_that_was_killed(
    engine: Embedded, client: windlass.Client, folder: Path, gate: Path
) -> None:
    only_with_images(engine, "tests/unit/agent has it for builders that are members themselves")
    words = a_package(folder, gate) | engine.sees(gate)
    (folder / "slowly" / "other").touch()
    handle = client.run(["python", "job.py"], **words)
    until(lambda: list(gate.glob("began-*")), "it is being built")
    (first,) = (pod for pod in builders(client) if pod.status.phase == "Running")
    engine.write("DELETE", f"/api/v1/namespaces/default/pods/{first.name}?gracePeriodSeconds=0", {})
    until(lambda: len(list(gate.glob("began-*"))) == 2, "another builds it")
    (gate / "go").touch()
    assert said(handle)[0].startswith("42 ")
    assert handle.status.retries == 0


def test_a_build_that_fails_is_reported_with_the_output_of_the_tool(
    engine: Embedded, client: windlass.Client
) -> None:
    words: dict[str, Any] = {"requirements": ["no-such-package-anywhere==1"], **WORDS}
    handles = [client.run(["true"], **words) for _ in range(2)]
    for handle in handles:
        status = handle.wait(120).status
        assert (status.phase, status.reason) == ("Failed", "ImageOrEnvironmentFailed")
        assert "no-such-package-anywhere" in status.message
        handle.delete(wait=True)
    if engine.images:
        until(lambda: not builders_of(client, handles), "its pods go with the run")


def builders_of(client: windlass.Client, handles: list[windlass.RunHandle]) -> list[str]:
    names = {handle.name for handle in handles}
    return [
        pod.name
        for pod in builders(client)
        if names & {each.name for each in pod.metadata.owner_references or ()}
    ]


def test_packages_and_setup_work_in_an_image_of_the_users_own(
    engine: Embedded, client: windlass.Client, folder: Path, gate: Path
) -> None:
    only_with_images(engine).platform.cluster.nodes[0].load(images.own())
    (gate / "go").touch()
    words = a_package(folder, gate) | engine.sees(gate)
    (folder / "job.py").write_text(
        "import pathlib, slowly, windlass\n"
        "print(slowly.VALUE, hasattr(windlass, 'Client'), pathlib.Path('made').exists())\n"
    )
    handle = client.run(
        ["python", "job.py"], image=images.OWN, setup="touch made; python -c 'import slowly'",
        workers=2, **words,
    )  # fmt: skip
    # The package for programs inside jobs is there, the platform's own is not.
    assert said(handle) == ["42 False True"] * 2
    assert len(list(gate.glob("began-*"))) == 1


def test_an_image_without_python_gets_a_message_about_what_packages_need(
    engine: Embedded, client: windlass.Client
) -> None:
    only_with_images(engine).platform.cluster.nodes[0].load(images.bare())
    handle = client.run(["/only/busybox", "true"], image=images.BARE, requirements=["x"], **WORDS)
    status = handle.wait(120).status
    assert (status.phase, status.reason) == ("Failed", "ImageOrEnvironmentFailed")
    assert f"image {images.BARE} has no python3" in status.message
