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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


def main() -> int:
    state = Path(tempfile.mkdtemp(prefix="windlass-demo-"))
    os.environ["WINDLASS_STATE"] = str(state)
    for other_server in ("KUBECONFIG", "WINDLASS_KUBECONFIG"):
        os.environ.pop(other_server, None)
    try:
        tell("1. Start the engine on this machine: no container, no database, no cluster.")
        windlass("up", "--detach", "--no-kubectl-context")
        tell("2. Train with two workers that average their gradients; their logs arrive live.")
        small = ("--cpus", "500m", "--memory", "256Mi")
        windlass("run", "-n", "train", "-w", "2", *small, "--", sys.executable,
                 str(HERE / "train.py"))  # fmt: skip
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
    tell(f"3. One job takes all {cores} cores and says how long; the next one waits. Ask why.")
    windlass("submit", "-n", "greedy", "--cpus", cores, "--memory", "128Mi", "--expected", "10m",
             "--", "sleep", "600")  # fmt: skip
    windlass("wait", "greedy", "--started")
    windlass("submit", "-n", "patient", "--cpus", "1", "--memory", "128Mi", "--", "echo", "at last")
    windlass("ps")
    print(flush=True)
    windlass("why", "patient")
    tell("4. The greedy job is stopped, and the patient one runs.")
    windlass("stop", "greedy", "--wait")
    windlass("attach", "patient")
    windlass("ps")


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


def stop(state: Path) -> None:
    print("$ windlass down --stop-runs", flush=True)
    subprocess.run([*WINDLASS, "down", "--stop-runs"], check=False)
    shutil.rmtree(state, ignore_errors=True)


NEXT = """
What to try next, with an engine that stays:

  source .venv/bin/activate                   brings the command `windlass`
  windlass up --detach                        start it; state lives in ~/.windlass
  windlass run -w 2 --workdir . -- python train.py    your own job, with its exit code
  windlass init; windlass run -f run.yaml     the same as a file, with comments
  kubectl --kubeconfig ~/.windlass/kubeconfig get runs   any Kubernetes client works
  windlass doctor                             what this machine can and cannot do
  windlass --help                             everything else
"""


if __name__ == "__main__":
    sys.exit(main())
