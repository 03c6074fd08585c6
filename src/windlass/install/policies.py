"""How the cluster treats us and what it checks for us: namespaces, priorities, admission."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.install import names, rights
from windlass.install.names import Object
from windlass.server import platformpaths

_SHARES = 40
"""As kube-scheduler's own level; a plain ServiceAccount shares one level with everybody's."""
_PRECEDENCE = 700
"""Before the level of all service accounts (9000) and the system's own (800)."""
_USERS = "windlass-users"


def namespaces() -> Iterator[Object]:
    for name, level in ((names.SYSTEM, "restricted"), (names.NODES, "privileged")):
        made = names.metadata(name, "namespaces")
        made["labels"] |= {
            f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")
        }
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": made}


def priorities() -> Iterator[Object]:
    """Our pods are not the first to go, and our requests do not stand in the users' line."""
    yield {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": names.metadata(names.PRIORITY, "policies"),
        "value": 900_000_000,
        "globalDefault": False,
        "description": "The parts of Windlass itself.",
    }  # fmt: skip
    yield {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": names.metadata("windlass", "policies"),
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": _SHARES,
                "limitResponse": {
                    "type": "Queue",
                    "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": 200},
                },
            },
        },
    }  # fmt: skip
    deciding = (names.SCHEDULER, names.CONTROLLERS)
    yield {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": names.metadata("windlass", "policies"),
        "spec": {
            "priorityLevelConfiguration": {"name": "windlass"},
            "matchingPrecedence": _PRECEDENCE,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {
                    "subjects": [
                        {
                            "kind": "ServiceAccount",
                            "serviceAccount": {"name": each, "namespace": rights.ACCOUNTS[each]},
                        }
                        for each in deciding
                    ],
                    "resourceRules": [
                        {
                            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                            "namespaces": ["*"], "clusterScope": True,
                        }
                    ],
                }
            ],
        },
    }  # fmt: skip


def admission() -> Iterator[Object]:
    """Nobody hands in work in another's name: what the embedded server checks itself."""
    ours = f"system:serviceaccount:{names.SYSTEM}:{names.CONTROLLERS}"
    api = "admissionregistration.k8s.io/v1"
    yield {
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy",
        "metadata": names.metadata(_USERS, "policies"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["windlass.dev"], "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"], "resources": ["runs", "cronruns"],
                    }
                ]
            },
            # What CronRuns are made into carries the name of whoever made the CronRun.
            "matchConditions": [
                {"name": "not-ours", "expression": f"request.userInfo.username != '{ours}'"},
                {
                    "name": "not-a-master",
                    "expression": "!('system:masters' in request.userInfo.groups)",
                },
            ],
            "variables": [
                {"name": "user", "expression": _user_of("object")},
                {
                    "name": "before",
                    "expression": f"oldObject == null ? '' : {_user_of('oldObject')}",
                },
            ],
            "validations": [
                {
                    "expression": "variables.user == '' || variables.user == variables.before || "
                    "variables.user == request.userInfo.username",
                    "messageExpression": "'spec.user must be \"' + request.userInfo.username + "
                    "'\", the caller; leave it out to have it filled in by the client'",
                    "reason": "Forbidden",
                }
            ],
        },
    }  # fmt: skip
    yield {
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": names.metadata(_USERS, "policies"),
        "spec": {"policyName": _USERS, "validationActions": ["Deny"]},
    }  # fmt: skip


def api_service(bundle: str) -> Object:
    """`bundle`: the authority of the server's certificate, in base64."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": names.metadata(
            f"{platformpaths.VERSION}.{platformpaths.GROUP}", "server"
        ),
        "spec": {
            "group": platformpaths.GROUP,
            "version": platformpaths.VERSION,
            "service": {"namespace": names.SYSTEM, "name": names.SERVER, "port": 443},
            "caBundle": bundle,
            "groupPriorityMinimum": 1000,
            "versionPriority": 10,
        },
    }  # fmt: skip


def _user_of(what: str) -> str:
    """CEL: the user of a Run, or of a CronRun's template; '' if there is none."""
    run = f"{what}.spec"
    template = f"{what}.spec.template.spec"
    return (
        f"{what}.kind == 'CronRun' ? (has({template}.user) ? {template}.user : '') : "
        f"(has({run}.user) ? {run}.user : '')"
    )
