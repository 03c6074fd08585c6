"""`windlass init`: a run file with a comment on everything that is worth knowing."""

from __future__ import annotations

from pathlib import Path

import click

from windlass.cli import base, exits
from windlass.cli.output import Output

TEMPLATE = """\
# A job for Windlass. Hand it in:  windlass run -f {file}
# Flags override what is here:      windlass run -f {file} -w 8 --priority 80
# What each field means:            windlass explain run.spec
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata:
  name: {name}
spec:
  # queue: team-a            # default: the queue of your namespace
  # priority: 50             # higher first, inside the queue
  # preemptible: true        # false starts only inside the queue's own guarantee
  # framework: torch         # process, torch, mpi, tensorflow, jax, ray, deepspeed, spark, flink

  roles:
  - name: worker
    replicas: 1
    # minReplicas: 1         # elastic: starts with this many, grows when there is room
    command: {command}
    # env:
    #   EPOCHS: "3"
    # envFrom:
    # - secret: credentials  # values of a Secret as variables
    resources:
      cpu: "1"
      memory: 1Gi            # of each worker, shared memory included
      # shm: 512Mi           # size of /dev/shm, part of the memory; default: half of it
    # devices:
    # - kind: gpu
    #   count: 1             # or  share: 1/4
    #   models: [h100, a100] # acceptable ones, best first

  # placement:
  #   gang: true             # all workers start together, or none does
  #   pack: binpack          # or spread, fragmentation
  #   topology: {{level: rack, mode: preferred}}
  #   nodes:
  #     selector: {{disk: ssd}}

  # environment:
  #   python: "3.11"         # quote it: YAML reads 3.10 as 3.1
  #   requirements: [numpy]
  #   setup: |
  #     echo runs once before the command

  # mounts:
  # - from: host:/data       # or claim:NAME, config:NAME, secret:NAME, dataset:NAME
  #   path: /data
  #   readOnly: true

  # duration:
  #   expected: 2h           # your estimate lets it fit into gaps
  #   max: 12h               # running longer ends the attempt
  # retries:
  #   limit: 3
  #   causes: [NodeLost, Preempted]   # add Failed to retry errors of your code
  # checkpoint:
  #   signal: SIGTERM        # sent before it is stopped or preempted
  #   grace: 30s
  # ttlAfterFinished: 7d     # the record is deleted then; default: kept
"""


@base.command(
    examples=(
        "windlass init",
        "windlass init train.yaml -- python train.py --epochs 3",
        "windlass init - | windlass apply -f -",
    ),
)
@click.argument("words", metavar="[FILE.yaml|-] [COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--name", default="", help="Name of the run. [default: the file's]")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(out: Output, words: tuple[str, ...], name: str, force: bool) -> None:
    """Write a commented run file that can be handed in as it is. `-` prints it."""
    import json
    import re

    named = bool(words) and (words[0] == "-" or words[0].endswith((".yaml", ".yml", ".json")))
    file, command = (words[0], words[1:]) if named else ("run.yaml", words)
    stem = re.sub(r"[^a-z0-9]+", "-", Path(file).stem.lower()).strip("-")
    chosen = name or (stem if stem and stem[0].isalpha() else "hello")
    argv = list(command) or ["sh", "-c", "echo hello from worker $WINDLASS_RANK"]
    text = TEMPLATE.format(file=file, name=chosen, command=json.dumps(argv))
    if file == "-":
        out.raw(text.rstrip())
        return
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise exits.CliError(
            f"{file} is there already.", "Name another file, or pass --force.", exits.CONFLICT
        ) from None
    except OSError as problem:
        raise exits.CliError(
            f"{file} cannot be written: {problem.strerror}.", "Name another place."
        ) from None
    out.say(f"{file} written")
    out.hint(f"  hand it in  windlass run -f {file}")
    out.result({"file": file, "name": chosen}, names=[file])
