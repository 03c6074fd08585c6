"""What a run asks its pods to be: privileges, mounts, others' secrets, addresses to call."""

from __future__ import annotations

from typing import Any

from tests.hostile.attack import (
    API,
    BOTH,
    CORE,
    EMBEDDED,
    INVALID,
    JSON_PATCH,
    KUBERNETES,
    MERGE,
    PLATFORM,
    Attack,
    cron,
    run,
)

_RUNS, _CRONS = f"{API}/namespaces/red/runs", f"{API}/namespaces/red/cronruns"
_OWN = f"{_RUNS}/own"
_DROPPED = (201, *INVALID)
"""Refused, or the field is left out: then the answer lacks it."""

_OVERRIDES: dict[str, dict[str, Any]] = {
    "hostPID": {"hostPID": True},
    "hostNetwork": {"hostNetwork": True},
    "hostIPC": {"hostIPC": True},
    "hostUsers": {"hostUsers": True},
    "nodeName": {"nodeName": "n2"},
    "serviceAccountName": {"serviceAccountName": "windlass-controllers"},
    "automountServiceAccountToken": {"automountServiceAccountToken": True},
    "hostPath": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    "privileged": {"securityContext": {"privileged": True}},
    "allowPrivilegeEscalation": {"securityContext": {"allowPrivilegeEscalation": True}},
    "SYS_ADMIN": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
    "Unconfined": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "procMount": {"securityContext": {"procMount": "Unmasked"}},
    "kernel.msgmax": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "initContainers": {"initContainers": [{"name": "x", "image": "x"}]},
    "hostAliases": {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["server"]}]},
    "schedulerName": {"schedulerName": "evil"},
}
"""By what the answer must not have."""
_ROLES: dict[str, dict[str, Any]] = {
    "securityContext": {"securityContext": {"privileged": True}},
    "image": {"image": "evil"},
    "livenessProbe": {"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}},
    "lifecycle": {"lifecycle": {"preStop": {"exec": {"command": ["id"]}}}},
    "volumeDevices": {"volumeDevices": [{"name": "disk", "devicePath": "/dev/sda"}]},
    "hostPort": {"ports": [{"name": "a", "port": 8080, "hostPort": 6443}]},
    "valueFrom": {"env": {"A": {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}}}},
}
_HOST_PATHS = (
    "/", "/etc", "/proc", "/root", "/var/lib/kubelet/pods", "/var/run/docker.sock",
    "/data/../etc", "//etc", "/proc/self/root", "/dev",
)  # fmt: skip
_TARGETS = (
    "relative", "/data\nx", "/data\x00x", "..", "",
)  # fmt: skip
_SOURCES = (
    "secret:../../blue/keys", "secret:blue/keys", "config:blue:settings", "claim:../x",
    "claim:", "host:etc", "file:/etc/passwd", "https://evil.example/x", "secret:KEYS\n",
)  # fmt: skip
_ENV_FROM = ("../../blue/keys", "blue/keys", "keys\n", "", "K" * 300)


def _mount(source: str, path: str = "/data") -> dict[str, Any]:
    return {"mounts": [{"from": source, "path": path}]}


def _role(**more: Any) -> dict[str, Any]:
    role = {"command": ["true"], "resources": {"cpu": "100m", "memory": "32Mi"}}
    return {"roles": [role | more]}


def _refused(what: str, spec: dict[str, Any], **more: Any) -> list[Attack]:
    """In a run and in the template of a cron run."""
    return [
        Attack(f"a member's run {what}", "rita", "POST", _RUNS, run(**spec), **more),
        Attack(f"a member's cron run {what}", "rita", "POST", _CRONS, cron(**spec), **more),
    ]


def _all_refused() -> list[Attack]:
    found: list[Attack] = []
    for path in _HOST_PATHS:
        # On one machine the agent refuses the pod: it alone knows the folders.
        found += _refused(f"mounts {path} of a node", _mount(f"host:{path}"), engines=KUBERNETES)
    for target in _TARGETS:
        found += _refused(f"mounts over {target!r}", _mount("secret:keys", target),
                          expected=INVALID)[:1]  # fmt: skip
    for source in _SOURCES:
        found += _refused(f"mounts {source!r}", _mount(source), expected=INVALID)[:1]
    for name in _ENV_FROM:
        spec = _role(envFrom=[{"secret": name}])
        found += _refused(f"takes variables of {name[:20]!r}", spec, expected=INVALID)[:1]
    return found


_NAMES = (
    "hostile-\x1b[2J", "hostile-\n", "hostile-\x00", "../hostile", "hostile-;reboot", "-rf",
    "hostile-\u202e", "hostile-" + "x" * 300, "", "HOSTILE", "hostile-$$(id)", "hostile-%s",
    ".", "..", "hostile/../../blue",
)  # fmt: skip
"""Names that a terminal, a shell or a file system would read differently."""


ROWS: list[Attack] = [
    *(
        Attack(f"a member overrides {word}", "rita", "POST", _RUNS, run(overrides=value),
               expected=_DROPPED, lacks=(word,))
        for word, value in _OVERRIDES.items()
    ),
    *(
        Attack(f"a member's role has {word}", "rita", "POST", _RUNS, run(**_role(**value)),
               expected=_DROPPED, lacks=(f'"{word}"',))
        for word, value in _ROLES.items()
    ),
    *_all_refused(),
    *(
        Attack(f"a member names a run {name[:20]!r}", "rita", "POST", _RUNS, run(name),
               expected=INVALID)
        for name in _NAMES
    ),
    *(
        Attack(f"a member's run has a {field} with escapes", "rita", "POST", _RUNS,
               run(**{field: "\x1b]0;x\x07"}), expected=(403, *INVALID))
        for field in ("user", "queue")
    ),
    Attack("a member adds a mount of the node to its run", "rita", "PATCH", _OWN,
           {"spec": _mount("host:/")}, kind=MERGE, expected=(403, *INVALID)),
    Attack("a member adds a mount of the node by operations", "rita", "PATCH", _OWN,
           [{"op": "add", "path": "/spec/mounts", "value": _mount("host:/")["mounts"]}],
           kind=JSON_PATCH, expected=(403, *INVALID)),
    Attack("a member becomes root in its run", "rita", "PATCH", _OWN,
           {"spec": {"overrides": {"securityContext": {"runAsUser": 0}}}}, kind=MERGE,
           expected=(403, *INVALID)),
    *_refused("has the priority class of the system",
              {"overrides": {"priorityClassName": "system-node-critical"}}, expected=INVALID),
    *_refused("has the priority class of the platform",
              {"overrides": {"priorityClassName": "windlass-platform"}}, expected=INVALID),
    *_refused("asks for more replicas than there may be", _role(replicas=1_000_000),
              expected=INVALID),
    *_refused("has a negative user", {"overrides": {"securityContext": {"runAsUser": -1}}},
              expected=INVALID),
    *_refused("asks for infinitely much memory",
              _role(resources={"cpu": "1e400", "memory": "-1Gi"}), expected=INVALID),
    *_refused("has a variable with a line break in its name", _role(env={"A\nB": "x"}),
              expected=INVALID),
    *_refused("has a NUL in its command", _role(command=["sh", "a\x00b"]),
              expected=(201, *INVALID)),
    *_refused("names code that is a path", {"code": {"digest": "sha256:../../../etc/passwd"}},
              expected=INVALID),
    *_refused("has a signal that is none", {"checkpoint": {"signal": "SIGKILL; reboot"}},
              expected=INVALID),
    *_refused("waits for ever to be stopped", {"checkpoint": {"grace": "999999999999999h"}},
              expected=INVALID),
    Attack("a member's schedule is every second of every kind", "rita", "POST", _CRONS,
           cron() | {"spec": cron()["spec"] | {"schedule": "*/0 * * * *"}}, expected=INVALID,
           on_kubernetes=(201,)),
    Attack("a member's schedule is in a time zone that is a file", "rita", "POST", _CRONS,
           cron() | {"spec": cron()["spec"] | {"timeZone": "../../../etc/passwd"}},
           expected=INVALID),
    Attack("a member's service leads to another host", "rita", "POST",
           f"{CORE}/namespaces/red/services",
           {"metadata": {"name": "hostile-web"},
            "spec": {"type": "ExternalName", "externalName": "169.254.169.254"}},
           expected=_DROPPED),
    Attack("a member forwards a port of the node", "rita", "GET",
           f"{CORE}/namespaces/red/services/http:127.0.0.1:22/proxy/", expected=(403, 404)),
    Attack("a member reads through its pod as a proxy", "rita", "GET",
           f"{CORE}/namespaces/red/pods/$own_pod:10250/proxy/pods", expected=(403, 404)),
    Attack("a member plans a run with a mount of the node", "rita", "POST",
           f"{PLATFORM}/namespaces/red/plan", {"run": run(**_mount("host:/"))},
           expected=(200, *INVALID), engines=BOTH),
    Attack("a member executes without a web socket", "rita", "POST",
           f"{CORE}/namespaces/red/pods/$own_pod/exec?command=id&stdout=1", expected=(400, 403),
           engines=EMBEDDED),
    Attack("a member forwards a port that is a path", "rita", "GET",
           f"{CORE}/namespaces/red/pods/$own_pod/portforward?ports=..%2F1",
           expected=(400,), engines=EMBEDDED),
    Attack("a member speaks another protocol over a web socket", "rita", "GET",
           f"{CORE}/namespaces/red/pods/$own_pod/exec?command=id&stdout=1", expected=(400,),
           headers={"Connection": "Upgrade", "Upgrade": "websocket",
                    "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAA",
                    "Sec-WebSocket-Protocol": "evil"}, engines=EMBEDDED),
    Attack("a member executes in a container that is a path", "rita", "GET",
           f"{CORE}/namespaces/red/pods/$own_pod/exec?container=..%2F..%2Fblue&command=id",
           expected=(400, 404), headers={
               "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
               "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}, engines=EMBEDDED),
]  # fmt: skip
