"""deploy/Containerfile as it stands makes an image in which our parts work, and nothing that runs
there can change them. `make soak` installs Windlass from it, on nodes that really run pods."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import containerfile, images, kubelet
from tests.kubernetes.conftest import Cli
from tests.kubernetes.test_installed import Installed, add_volume, balancer_of
from windlass.install.manifests import workloads

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600)]

PARTS = (
    "windlass.server.main", "windlass.control.main", "windlass.agent.main", "windlass.cli.main",
    "windlass.agent.init.main", "grpc", "psycopg", "uvloop",
)  # fmt: skip
STALE = """
import importlib.util, pathlib, sysconfig
for source in pathlib.Path(sysconfig.get_path("purelib")).rglob("*.py"):
    made = pathlib.Path(importlib.util.cache_from_source(source))
    # The flags after the magic number: by hash, and never looked at again.
    ours = "pip" not in source.parts
    if ours and (not made.exists() or made.read_bytes()[4:8] != bytes([1, 0, 0, 0])):
        print(source)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[containerfile.Image]:
    try:
        containerfile.ensure()
    except containerfile.CannotBuildError as problem:
        if os.environ.get("CI") == "true":
            pytest.fail(str(problem), pytrace=False)
        pytest.skip(str(problem))
    with containerfile.Image.build() as made:
        yield made


def said(image: containerfile.Image, *command: str) -> str:
    done = image.run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_command_and_all_parts_are_there(image: containerfile.Image) -> None:
    assert said(image, "windlass", "version").startswith("windlass ")
    # The Python that pods and parts are started with, without anything of the caller's.
    said(image, workloads.PYTHON, "-I", "-c", f"import {', '.join(PARTS)}")


def test_what_init_containers_bring_along_is_there(image: containerfile.Image) -> None:
    assert said(image, "uv", "--version").startswith("uv ")
    busybox = said(image, "sh", "-c", "command -v busybox")
    assert said(image, "busybox", "echo", "static") == "static"
    ask = f"import pathlib; print(b'/ld-linux' in pathlib.Path('{busybox}').read_bytes())"
    assert said(image, "python3", "-c", ask) == "False", "it would need a library of the image"


def test_it_runs_as_an_unprivileged_user_and_can_change_nothing(image: containerfile.Image) -> None:
    assert said(image, "id", "-u") == said(image, "id", "-g") == str(images.USER)
    assert said(image, "sh", "-c", "echo $HOME") == "/tmp"
    find = "find / -xdev ( -path /proc -o -path /dev -o -path /sys ) -prune -o -not -type l"
    writable = image.run(*find.split(), "-writable", "-print").stdout.split()
    assert set(writable) == {"/tmp", "/var/tmp", "/run/lock"}


def test_nothing_is_compiled_again_by_users_without_write_access(
    image: containerfile.Image,
) -> None:
    assert said(image, "python3", "-c", STALE) == ""


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("WINDLASS_SOAK") != "1", reason="make soak runs it")
def test_windlass_is_installed_from_it_and_runs_a_job(
    image: containerfile.Image, kubernetes_binaries: Path, tmp_path: Path
) -> None:
    with kubelet.Cluster.start(nodes=1) as cluster:
        cluster.plane.start_scheduler()
        add_volume(cluster)
        cluster.nodes[0].load(image.archive())
        balancer = balancer_of(cluster)
        balancer.start()
        try:
            made = Installed(cluster, balancer, image.NAME)
            made.admin("install", *made.options, "--timeout", "4m", seconds=300)
            runs_a_job(made.admin, tmp_path)
            used = {
                container["image"]
                for listed in made.pods().values()
                for pod in listed
                for container in pod["spec"]["containers"]
            }
            assert used == {image.NAME}
        finally:
            balancer.stop()


def runs_a_job(admin: Cli, folder: Path) -> None:
    """With sent code, so that its pod is prepared by the image, too."""
    (folder / "train.py").write_text("import numpy\nprint('trained by', 6 * 7)\n")
    done = admin(
        "run", "-n", "train", "--workdir", str(folder), "--cpus", "0.1", "--",
        "python3", "train.py",
    )  # fmt: skip
    assert "trained by 42" in done.out
