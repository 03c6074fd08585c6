"""Flink: a job manager on the first member, task managers on the others, jobs from the first.

`python job.py` is handed to the cluster as `flink run -py job.py`; `flink ...` finds the cluster
by itself, in its configuration.
"""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered, Steps, led

_HOME = (
    'export FLINK_HOME="${FLINK_HOME:-$(find_flink_home.py)}"; '
    'cp -n "$FLINK_HOME"/conf/log* "$FLINK_CONF_DIR" 2>/dev/null; '
)
"""The folder of the apache-flink package, which has no programs of its own on the PATH; how it
logs goes beside our configuration."""
_EXPORTED = (
    "java.rmi/sun.rmi.registry", "jdk.compiler/com.sun.tools.javac.api",
    "jdk.compiler/com.sun.tools.javac.file", "jdk.compiler/com.sun.tools.javac.parser",
    "jdk.compiler/com.sun.tools.javac.tree", "jdk.compiler/com.sun.tools.javac.util",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
_OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text",
    "java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)  # fmt: skip
"""What Flink's own configuration opens of newer Javas."""
_READY = """
import json, sys, urllib.request
state = json.load(urllib.request.urlopen(sys.argv[1] + "/overview", timeout=5))
sys.exit(state["taskmanagers"] < int(sys.argv[2]))
"""


def render(group: Group, member: Member) -> Rendered:
    lead = group.lead
    rest = lead.port + 2
    files = {"flink/config.yaml": group.once("config", lambda: _config(group))}
    manager = _program("taskmanager.sh", "start-foreground", "-D", "taskmanager.host={address}")
    background = [_program("jobmanager.sh", "start-foreground")]
    if not group.leads_only:
        background.append(manager)
    steps = Steps(
        command=_command(group),
        background=background,
        opens=lead.port + 1,
        workers=manager,
        ready=[group.python, "-I", "-c", _READY, f"http://{lead.address}:{rest}",
               str(len(group.workers))],
    )  # fmt: skip
    rendered = led(group, member, steps, files)
    variables = {
        "FLINK_CONF_DIR": f"{group.folder}/flink",
        "FLINK_LOG_DIR": f"{group.folder}/flink-log",
    }
    return Rendered({**variables, **rendered.variables}, files, rendered.command)


def _config(group: Group) -> str:
    lead, worker = group.lead, group.workers[0]
    managers = 1 if group.leads_only else 2
    memory = max(1024, (worker.memory >> 20) // managers) if worker.memory else 1728
    entries = {
        "jobmanager.rpc.address": lead.address,
        "jobmanager.rpc.port": lead.port + 1,
        "jobmanager.bind-host": lead.address,
        "jobmanager.memory.process.size": "1024m",
        "rest.address": lead.address,
        "rest.bind-address": lead.address,
        "rest.port": lead.port + 2,
        "blob.server.port": lead.port + 3,
        "taskmanager.memory.process.size": f"{memory}m",
        "taskmanager.numberOfTaskSlots": worker.cpus,
        "parallelism.default": sum(each.cpus for each in group.workers),
        "execution.target": "remote",
        "env.java.opts.all": " ".join(
            [f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED]
            + [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        ),
    }
    return "".join(f"{key}: {value}\n" for key, value in entries.items())


def _command(group: Group) -> list[str]:
    program, *rest = group.command
    name = program.rpartition("/")[2]
    if name == "flink":
        return _program("flink", *rest)
    if name.startswith("python") and rest and rest[0].endswith(".py"):
        return _program("flink", "run", "-pyclientexec", program, "-pyexec", program, "-py", *rest)
    return list(group.command)


def _program(name: str, *words: str) -> list[str]:
    return ["sh", "-c", f'{_HOME}exec "$FLINK_HOME/bin/{name}" "$@"', name, *words]


FRAMEWORK = Framework(ports=4, render=render, secret=True, starts_ranks=True)
