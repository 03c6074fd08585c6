"""Ray: a head on the first member, raylets on the others, the user's command on the head.

The command starts when every member has joined; `ray.init()` in it finds the cluster by
RAY_ADDRESS. When it ends, the others end with it.
"""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered, Steps, led

_WITH_CLIENT = (
    'python -c "import grpc" 2>/dev/null && set -- "$@" --ray-client-server-port="$0"; exec "$@"'
)
"""Ray's client server takes a fixed port where it is installed, and the flag is an error where it
is not."""
_JOINED = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
sys.exit(sum(1 for node in ray.nodes() if node["Alive"]) < int(sys.argv[2]))
"""


def render(group: Group, member: Member) -> Rendered:
    lead = group.lead
    address = f"{lead.address}:{lead.port + 1}"
    # Short: paths of sockets below it have at most 107 characters.
    scratch = "/tmp/" + f"wl-{group.uid[:8]}-{group.attempt}"  # noqa: S108 - as Ray's own default
    head = [
        "ray", "start", "--head", "--block", "--disable-usage-stats",
        f"--node-ip-address={lead.address}", f"--port={lead.port + 1}",
        f"--temp-dir={scratch}", "--include-dashboard=false",
        f"--num-cpus={0 if group.leads_only else lead.cpus}", f"--num-gpus={lead.gpus}",
    ]  # fmt: skip
    worker = [
        "ray", "start", "--block", "--disable-usage-stats", f"--address={address}",
        "--node-ip-address={address}", "--num-cpus={cpus}", "--num-gpus={gpus}",
    ]  # fmt: skip
    steps = Steps(
        command=group.command,
        needs="ray",
        opens=lead.port + 1,
        scratch=scratch,
        background=[["sh", "-c", _WITH_CLIENT, f"{lead.port + 2}", *head]],
        workers=worker,
        ready=["python", "-c", _JOINED, address, str(len(group.members))],
    )
    rendered = led(group, member, steps, {})
    variables = {"RAY_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0"}
    return Rendered({**variables, **rendered.variables}, {}, rendered.command, scratch)


FRAMEWORK = Framework(ports=3, render=render, secret=True, starts_ranks=True)
