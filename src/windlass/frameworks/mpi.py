"""MPI: `./a.out` on all members as one job, started by whichever mpirun there is; no ssh.

The first member runs mpirun. Where mpirun would call ssh it calls the companion, which asks the
companion of the other member, by its name: members of one machine share its address, so a name
stands for address and port. Open MPI 4 and 5 (PRRTE) and Hydra (MPICH, Intel) read their settings
from variables, so a user who writes mpirun himself needs no flags either.
"""

from __future__ import annotations

import json
import shlex

from windlass.frameworks.group import Framework, Group, Member, Rendered, Steps, companion, led

_LAUNCHERS = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "srun"})
_RANK = """#!/bin/sh
# Names of ranks as other frameworks have them, from those of this MPI.
export RANK="${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
export WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-1}}"
export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}"
export LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-1}}"
export SLURM_PROCID="$RANK" SLURM_NTASKS="$WORLD_SIZE" SLURM_LOCALID="$LOCAL_RANK"
export WINDLASS_RANK="$RANK" WINDLASS_SIZE="$WORLD_SIZE"
exec "$@"
"""


def render(group: Group, member: Member) -> Rendered:
    slots = group.once("slots", lambda: sum(worker.slots for worker in group.workers))
    folder, lead = group.folder, group.lead
    files = {
        "rank": _RANK,
        "remote": f'#!/bin/sh\nexec {shlex.join(companion(group, "rsh"))} "$@"\n',
    }
    if member == lead or group.is_listed:
        files |= group.once("hostfiles", lambda: _hostfiles(group))
    variables = {
        "WINDLASS_HOSTFILE": f"{folder}/hostfile",
        "MASTER_ADDR": lead.address,
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": f"{folder}/remote",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_default_hostfile": f"{folder}/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": f"{folder}/remote",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_default_hostfile": f"{folder}/hostfile",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": f"{folder}/remote",
        "HYDRA_HOST_FILE": f"{folder}/hydra",
        "HYDRA_RMK": "user",
        # In a pod the user is often root, and what he can reach is the pod.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if member == lead:  # mpirun runs here and starts the others
        listed = [{"name": m.name, "address": m.address, "port": m.port} for m in group.members]
        variables["WINDLASS_MEMBERS"] = json.dumps(listed)
    steps = Steps(command=_command(group, slots), needs=_command(group, slots)[0])
    rendered = led(group, member, steps, files)
    return Rendered({**variables, **rendered.variables}, files, rendered.command)


def _hostfiles(group: Group) -> dict[str, str]:
    return {
        "hostfile": "".join(f"{each.name} slots={each.slots}\n" for each in group.workers),
        "hydra": "".join(f"{each.name}:{each.slots}\n" for each in group.workers),
    }


def _command(group: Group, ranks: int) -> list[str]:
    if group.command[0].rpartition("/")[2] in _LAUNCHERS:
        return list(group.command)
    return ["mpirun", "-n", str(ranks), f"{group.folder}/rank", *group.command]


FRAMEWORK = Framework(ports=1, render=render, secret=True, starts_ranks=True)
