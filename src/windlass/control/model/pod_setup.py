"""What stands around a member's command in its pod: what is prepared before it, how it is entered,
how it is asked to end, and what it may do. Pure; `control.runs.pod_template` puts it together.

Where pods run images, the init container `prepare` comes from the platform's image and leaves in
the pod's own folder all that the command needs, in whatever image that runs: code, environment, a
script with the variables that are known only now, and a static shell to read it with, so that the
image needs none.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from windlass.control.model import capabilities as engines
from windlass.kinds import reasons
from windlass.kinds.annotations import ROOT
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import duration, quantity

PREPARE = "prepare"
"""Name of the init container."""
FURNISH = "furnish"
"""Name of the one after it, in an image of the user's: packages are for the Python of that."""
ORDER = "WINDLASS_PREPARE"
"""The variable with the instructions for both."""
OUTPUTS = "outputs"
"""Name of the sidecar that collects outputs, and of the folder that is always collected."""
COLLECT = "WINDLASS_COLLECT"
"""The variable with its instructions."""
COLLECT_LIMIT = "256Mi"
"""Its memory: it holds one piece of a file at a time, and the list of files."""
_API = "/apis/platform.windlass.dev/v1alpha1"
_LIBRARY = "run/library"
"""Where `prepare` leaves what `furnish` runs, below the pod's folder."""
USER = 10001
"""The user of containers that do not set one; the platform's image has it, too."""
ENTRY = "run/environment"
"""The script that `prepare` leaves, below the pod's folder."""
COMPANION = "run/companion.py"
"""The companion's copy, below the pod's folder."""
_ENTER = '. "$0"; exec "$@"'
_TOOLS = "run/bin"
_USUAL_SIGNAL = "SIGTERM"
_LABEL = re.compile(r"[a-z][-a-z0-9]*")
_START_SECONDS = 600
"""How long members wait for each other if the Run does not say."""


def is_needed(spec: run.RunSpec, engine: engines.Engine, members: int) -> bool:
    """Whether anything must be prepared before the command."""
    if spec.code or builds_environment(spec):
        return True
    if not engine.images:
        return False
    # An image of the user's own does not contain what programs import as `windlass`.
    own = spec.environment is not None and bool(spec.environment.image)
    return own or finds_others(engine, members) or _translates(spec)


def builds_environment(spec: run.RunSpec) -> bool:
    environment = spec.environment
    return environment is not None and bool(
        environment.requirements or environment.python or environment.setup
    )


def furnished_in(spec: run.RunSpec, engine: engines.Engine) -> str:
    """The image of the user's in which packages are installed and `setup` runs; "": in `prepare`,
    because members run in the platform's image, or on the node's own files."""
    own = engine.images and spec.environment is not None and spec.environment.image
    return own if own and builds_environment(spec) else ""


def furnish_command(image: str) -> list[str]:
    """Starts `agent.init.image_environment` in an image of which nothing is known but its name."""
    root = ROOT
    failure = {
        "reason": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
        "message": f"image {image} has no python3, which packages and setup need: name an image "
        "with Python 3.8 or newer, or put the packages into the image",
    }
    start = (
        f"import sys; sys.path.insert(0, '{root}/{_LIBRARY}'); "
        "from windlass.agent.init import image_environment as i; sys.exit(i.main())"
    )
    script = (
        f'PATH="$PATH:{root}/{_TOOLS}"; export PATH; command -v python3 > /dev/null || '
        f"{{ echo {shlex.quote(json.dumps(failure))} > /dev/termination-log; exit 1; }}; "
        f"exec python3 -I -c {shlex.quote(start)}"
    )
    return [f"{root}/{_TOOLS}/sh", "-c", script]


def finds_others(engine: engines.Engine, members: int) -> bool:
    """Whether members learn each other's addresses only when they are all there."""
    return engine.addresses == "pod" and members > 1 and bool(engine.server)


def service(
    owner: run.Run, engine: engines.Engine, reference: meta.OwnerReference
) -> core.Service | None:
    """Names for members, for programs that want some: `worker-0.RUN.NAMESPACE.svc`, and `RUN` for
    all of them. Nothing of ours needs it."""
    members = sum(role.replicas for role in owner.spec.roles)
    if not has_names(owner, engine, members):
        return None
    return core.Service(
        metadata=meta.ObjectMeta(
            name=owner.name, namespace=owner.namespace, owner_references=[reference]
        ),
        spec=core.ServiceSpec(
            cluster_ip="None",
            selector={run.LABEL_RUN: owner.name},
            publish_not_ready_addresses=True,
        ),
    )


def has_names(owner: run.Run, engine: engines.Engine, members: int) -> bool:
    """A service's name is one label, and begins with a letter."""
    return finds_others(engine, members) and bool(_LABEL.fullmatch(owner.name))


def order(
    spec: run.RunSpec, engine: engines.Engine, group: dict[str, Any] | None
) -> dict[str, Any]:
    """The instructions for `agent.init.main`. `group`: the pods it must find, in the format of
    `frameworks.group_file`."""
    environment = spec.environment or run.Environment()
    found: dict[str, Any] = {
        "code": spec.code.digest if spec.code else "",
        "requirements": environment.requirements or [],
        "python": environment.python or "",
        "setup": environment.setup or "",
    }
    if furnished_in(spec, engine):
        found |= {"image": environment.image, "library": _LIBRARY}
    if engine.images:
        limit = spec.duration.start if spec.duration else None
        seconds = duration.seconds(limit) if limit else _START_SECONDS
        found |= {"tools": True, "group": group, "patience": seconds}
    return found


def working_folder(spec: run.RunSpec, engine: engines.Engine) -> str:
    """The working folder of the command; "": that of its image, or of the node's agent."""
    if spec.code:
        return f"{ROOT}/code"
    return f"{ROOT}/work" if spec.outputs and engine.images else ""


def outputs_api(owner: run.Run, engine: engines.Engine, root: str) -> dict[str, str]:
    """The variables with which `windlass.load` inside of a job reads outputs of its team."""
    return {
        "WINDLASS_OUTPUTS_API": f"{engine.server}{_API}/namespaces/{owner.namespace}",
        "WINDLASS_OUTPUTS_AUTHORITY": engine.authority,
        "WINDLASS_OUTPUTS_TOKEN": f"{root}/token/token",
    }


def collect_command(engine: engines.Engine) -> list[str]:
    """Starts `agent.init.collect_outputs`. The signal that asks it to end must not end it before it
    is ready: it asks the server, too."""
    start = 'trap "" TERM; exec "$0" "$@"'
    module = "windlass.agent.init.collect_outputs"
    return ["/bin/sh", "-c", start, engine.python, "-I", "-m", module]


def collection(owner: run.Run, engine: engines.Engine) -> dict[str, Any]:
    """The instructions for `agent.init.collect_outputs`."""
    folder = working_folder(owner.spec, engine) or f"{ROOT}/work"
    return {
        "run": owner.name,
        "work": folder.removeprefix(f"{ROOT}/"),
        "outputs": [{"path": o.path, "when": list(o.when)} for o in owner.spec.outputs or ()],
    }


def environments_volume(engine: engines.Engine, namespace: str) -> dict[str, Any]:
    """Where a team's environments are kept: each is built once, by the first job that needs it."""
    kept = engine.environments.replace("{namespace}", namespace)
    kind, _, name = kept.partition(":")
    if kind == "claim":
        return {"persistentVolumeClaim": {"claimName": name}}
    if kept:
        return {"hostPath": {"path": kept, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {}}


def entered(command: list[str], root: str, engine: engines.Engine) -> list[str]:
    """The command behind a shell that reads what `prepare` wrote: it knows the paths and the
    addresses, and no engine must."""
    shell = f"{root}/{_TOOLS}/sh" if engine.images else "/bin/sh"
    return [shell, "-c", _ENTER, f"{root}/{ENTRY}", *command]


def lifecycle(spec: run.RunSpec, engine: engines.Engine) -> dict[str, Any] | None:
    """Kubernetes asks containers to end with SIGTERM (what `stopSignal` would change is not yet
    everywhere). So where another signal is wanted it is sent before that, and SIGTERM held back
    until the command has ended or the grace is over."""
    if not (engine.images and _translates(spec)):
        return None
    name = spec.checkpoint.signal.removeprefix("SIG")
    root = ROOT
    script = (
        f"PATH={root}/{_TOOLS}; read pid < {root}/{ENTRY}.pid; kill -{name} $pid; "
        "while kill -0 $pid 2> /dev/null; do sleep 0.1; done"
    )
    return {"preStop": {"exec": {"command": [f"{root}/{_TOOLS}/sh", "-c", script]}}}


def _translates(spec: run.RunSpec) -> bool:
    return spec.checkpoint.signal != _USUAL_SIGNAL


def pod_security(
    given: run.SecurityContext | None, engine: engines.Engine
) -> dict[str, Any] | None:
    """The `restricted` profile of Kubernetes' Pod Security Standards, with the user's overrides. A
    user may ask for root by its number, if the namespace permits that."""
    asked = given or run.SecurityContext()
    ids = {
        "runAsUser": asked.run_as_user,
        "runAsGroup": asked.run_as_group,
        "fsGroup": asked.fs_group,
    }
    wanted = {name: value for name, value in ids.items() if value is not None}
    if engine.isolation != "container":
        return wanted or None
    usual: dict[str, Any] = {
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return usual | {"runAsNonRoot": asked.run_as_user != 0} | wanted


def container_security(engine: engines.Engine) -> dict[str, Any] | None:
    if engine.isolation != "container":
        return None
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def shared_memory(role: run.Role, engine: engines.Engine) -> str:
    """The size of /dev/shm. `auto` is half of the memory where each member has its own; where all
    share the machine's there is nothing to ask for."""
    asked = role.resources.shm
    if asked != "auto":
        return str(asked)
    if engine.isolation == "process":
        return ""
    return str(quantity.whole(role.resources.memory) // 2)
