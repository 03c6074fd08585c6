"""`windlass init`: writes a commented run file."""

from __future__ import annotations

from pathlib import Path

import click

from windlass.cli.lib import base, exit_codes
from windlass.cli.lib.output import Output

TEMPLATE = """\
# A job for Windlass. Submit it:   windlass run -f {file}
# Flags override this file:        windlass run -f {file} -w 8 --priority 80
# Describe the fields:             windlass explain run.spec
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata:
  generateName: {name}-    # each submit gets a name of its own; or  name: {name}
spec:
  # queue: team-a            # default: the queue of your namespace
  # priority: 50             # higher first, inside the queue
  # preemptible: true        # false: starts only within the queue's guarantee
  # framework: torch         # process, torch, mpi, tensorflow, jax, ray, deepspeed, spark, flink

  roles:
  - name: worker
    replicas: 1
    # minReplicas: 1         # elastic: starts with this many, grows when capacity is free
    command: {command}
    # env:
    #   EPOCHS: "3"
    # envFrom:
    # - secret: credentials  # values of a Secret as variables
    resources:
      cpu: "1"
      memory: 1Gi            # per worker, shared memory included
      # shm: 512Mi           # size of /dev/shm, part of the memory; default: half of it
    # devices:
    # - kind: gpu
    #   count: 1             # or  share: 1/4
    #   models: [h100, a100] # accepted models, best first

  # placement:
  #   gang: true             # start all workers together or none
  #   pack: binpack          # or spread, fragmentation
  #   topology: {{level: rack, mode: preferred}}
  #   nodes:
  #     selector: {{disk: ssd}}

  # environment:
  #   python: "3.11"         # quote it: YAML reads 3.10 as 3.1
  #   requirements: [numpy]
  #   setup: |
  #     echo this runs once before the command

  # mounts:
  # - from: host:/data       # or claim:NAME, config:NAME, secret:NAME, dataset:NAME
  #   path: /data
  #   readOnly: true

  # duration:
  #   expected: 2h           # an estimate allows backfill
  #   max: 12h               # maximum duration of an attempt
  # retries:
  #   limit: 3
  #   causes: [NodeLost, Preempted]   # add Failed to retry errors of your code
  # checkpoint:
  #   signal: SIGTERM        # sent before it is stopped or preempted
  #   grace: 30s
  # ttlAfterFinished: 7d     # delete the record after this; default: never
"""


@base.command(
    examples=(
        "windlass init",
        "windlass init train.yaml -- python train.py --epochs 3",
        "windlass init - | windlass apply -f -",
    ),
)
@click.argument("arguments", metavar="[FILE.yaml|-] [COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--name", default="", help="Name of the run. [default: that of the file]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(out: Output, arguments: tuple[str, ...], name: str, force: bool) -> None:
    """Write a commented run file that can be submitted as it is. `-` prints it."""
    import json
    import re

    named = bool(arguments) and (
        arguments[0] == "-" or arguments[0].endswith((".yaml", ".yml", ".json"))
    )
    file, command = (arguments[0], arguments[1:]) if named else ("run.yaml", arguments)
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
        raise exit_codes.CliError(
            f"{file} exists already.", "Choose another file, or use --force.", exit_codes.CONFLICT
        ) from None
    except OSError as problem:
        raise exit_codes.CliError(
            f"{file} cannot be written: {problem.strerror}.", "Choose another place."
        ) from None
    out.say(f"{file} written")
    out.hint(f"  submit it  windlass run -f {file}")
    out.result({"file": file, "name": chosen}, names=[file])
