"""`make demo`: the engine, a job with live logs, a job that waits and why, and the end of it.

Everything happens in a temporary folder, by the commands a user would type, and everything that
was started is stopped again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WINDLASS = [sys.executable, "-m", "windlass.cli.main"]
PATIENCE = 60.0


def main() -> int:
    state = Path(tempfile.mkdtemp(prefix="windlass-demo-"))
    os.environ["WINDLASS_STATE"] = str(state)
    for other_server in ("KUBECONFIG", "WINDLASS_KUBECONFIG"):
        os.environ.pop(other_server, None)
    try:
        tell("1. Start the engine on this machine: no container, no database, no cluster.")
        windlass("up", "--detach", "--no-kubectl-context")
        tell("2. Run a job with two members; what they print arrives live.")
        small = ("--cpus", "500m", "--memory", "128Mi")
        script = (sys.executable, str(HERE / "pi.py"), "--members", "2", "--share", f"{state}/pi")
        windlass("run", "--name", "pi", "-w", "2", *small, "--", *script)
        show_waiting()
        tell("5. Stop the engine. With --stop-runs nothing of it goes on.")
    except subprocess.CalledProcessError as problem:
        print(f"\nThe demo stopped: the last command ended with code {problem.returncode}.")
        return 1
    except KeyboardInterrupt:
        print("\nStopping what the demo started.")
        return 130
    finally:
        stop(state)
    print(NEXT)
    return 0


def show_waiting() -> None:
    """One job takes all cores, so that the next one has to wait; then the first one goes."""
    cores = free_cores()
    tell(f"3. One job takes all {cores} cores; the next one has to wait, and says why.")
    windlass(
        "submit", "--name", "greedy", "--cpus", cores, "--memory", "128Mi", "--", "sleep", "600"
    )
    wait_for("greedy", "Running")
    windlass("submit", "--name", "patient", "--cpus", "1", "--memory", "128Mi", "--",
             "echo", "at last")  # fmt: skip
    waiting = wait_for("patient", "Queued", with_reason=True)
    windlass("get", "runs", "-o", "wide")
    print(f"\n   patient waits: {waiting['reason']}: {waiting['message']}")
    tell("4. The greedy job is deleted, and the patient one runs.")
    windlass("delete", "run", "greedy")
    windlass("logs", "-f", "patient")
    wait_for("patient", "Succeeded")
    windlass("get", "runs")


def tell(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def windlass(*arguments: str) -> None:
    """Shows the command as a user would type it, and runs it."""
    shown = [Path(word).name if word == sys.executable else word for word in arguments]
    print("$ windlass " + " ".join(shown), flush=True)
    subprocess.run([*WINDLASS, *arguments], check=True)


def ask(*arguments: str) -> Any:
    """What a program reads from `--json`."""
    done = subprocess.run(
        [*WINDLASS, *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def free_cores() -> str:
    """All that the node can give, as it says it."""
    (node,) = ask("status")["nodes"]
    return str(node["allocatable"]["cpu"])


def wait_for(name: str, phase: str, with_reason: bool = False) -> dict[str, Any]:
    """The run's status, once it is in this phase."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        status: dict[str, Any] = ask("get", "run", name).get("status") or {}
        if status.get("phase") == phase and (status.get("reason") or not with_reason):
            return status
        time.sleep(0.2)
    raise SystemExit(f"run {name} did not become {phase} within {PATIENCE:.0f} s: {status}")


def stop(state: Path) -> None:
    print("$ windlass down --stop-runs", flush=True)
    subprocess.run([*WINDLASS, "down", "--stop-runs"], check=False)
    shutil.rmtree(state, ignore_errors=True)


NEXT = """
What to try next, with an engine that stays:

  windlass up --detach                        start it; state lives in ~/.windlass
  windlass run -- python your_script.py       your own job, with its exit code
  windlass apply -f examples/hello.yaml       the same as a file
  kubectl --context windlass get runs         any Kubernetes client works
  windlass doctor                             what this machine can and cannot do
  windlass --help                             everything else
"""


if __name__ == "__main__":
    sys.exit(main())
