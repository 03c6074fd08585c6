"""Runs the suites that depend on Kubernetes against its older versions.

    python -m tests.harness.versions           all of `build.TESTED` but the one of this process
    python -m tests.harness.versions 1.34.4

`make soak` calls it. Each version is built first, into a cache of its own (about ten minutes on two
cores), and tested in processes of its own, because `build.KUBERNETES` is fixed in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from tests.harness import build

SUITES = (
    "tests/contract",
    "tests/kubernetes/test_external_pods.py",
    "tests/kubernetes/test_external_pods_differential.py",
    "tests/kubernetes/test_external_pods_volumes.py",
    "tests/kubernetes/test_external_pods_writes.py",
    "tests/kubernetes/test_gangs_by_owner.py",
    "tests/kubernetes/test_install.py",
    "tests/kubernetes/test_install_checks.py",
    "tests/kubernetes/test_installed.py",
    "tests/kubernetes/test_least_rights.py",
    "tests/kubernetes/test_chart.py",
)
"""The object API as its server answers it, pods of other controllers, and installations."""
Run = Callable[[Sequence[str], Mapping[str, str]], int]


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    return subprocess.run(command, env=environment, check=False).returncode


def main(versions: Sequence[str], run: Run = _run) -> int:
    """0 if all suites passed on all versions."""
    failed = []
    for version in versions or [each for each in build.TESTED if each != build.KUBERNETES]:
        print(f"--- Kubernetes {version}", flush=True)
        environment = {**os.environ, "WINDLASS_KUBERNETES": version}
        # The campaigns of these suites run once, on the newest version.
        environment.pop("WINDLASS_SOAK", None)
        tests = ["pytest", "-m", "kubernetes and not soak", *SUITES]
        for command in (["tests.harness.build"], tests):
            if run([sys.executable, "-m", *command], environment):
                failed.append(version)
                break
    if failed:
        print(f"failed on Kubernetes {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
