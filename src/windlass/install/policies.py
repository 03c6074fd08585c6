"""How the cluster treats us and what it checks for us: namespaces, priorities, admission."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.install import names, rights
from windlass.install.names import Object
from windlass.kinds import rules, run
from windlass.server import platformpaths

_GROUP = "admissionregistration.k8s.io/v1"
_SHARES = 40
"""As kube-scheduler's own level; a plain ServiceAccount shares one level with everybody's."""
_PRECEDENCE = 700
"""Before the level of all service accounts (9000) and the system's own (800)."""


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
    """What the embedded server sees to itself: names that are the caller's, queues that are his."""
    yield from changes()
    yield from unaccounted()
    yield from _users()
    yield from _budgets()
    yield from _queues()


def changes() -> Iterator[Object]:
    """What may not change in an object, judged only when more than its status is written."""
    for kind in dict.fromkeys(change.kind for change in rules.CHANGES):
        resource = kind.resource.plural
        yield from _policy(_GROUP, "Validating", f"windlass-changes-of-{resource}", {
            "matchConstraints": _matching(resource, "UPDATE"),
            "failurePolicy": "Fail",
            "validations": [_kept(each) for each in rules.CHANGES if each.kind is kind],
        }, {"validationActions": ["Deny"]})  # fmt: skip


def unaccounted() -> Iterator[Object]:
    """Who set which field of a Run is not kept, unless its maker manages fields: such an account is
    larger than the Run, and made anew at each write of a status (docs/design/speed.md). Once there
    is none, the API server begins none."""
    managed = "object.metadata.managedFields"
    yield from _policy(_GROUP, "Mutating", "windlass-fields-of-runs", {
        "matchConstraints": _matching("runs", "CREATE"),
        "matchConditions": [
            {
                "name": "not-applied",
                "expression": f"has({managed}) && !{managed}.exists(m, m.operation == 'Apply')",
            }
        ],
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": "[JSONPatch{op: 'remove', path: '/metadata/managedFields'}]"
                },
            }
        ],
    }, {})  # fmt: skip


def _kept(change: rules.Change) -> Object:
    if change.struct is run.Role:
        broken = f"!({change.cel.format(new='r', old='o')})"
        return {
            "expression": "object.spec.roles.all(r, !oldObject.spec.roles.exists(o, "
            f"o.name == r.name && {broken}))",
            "message": f"spec.roles[].{change.path}: {change.message}",
        }
    return {
        "expression": change.cel.format(new="object.spec", old="oldObject.spec"),
        "message": f"spec.{change.path}: {change.message}",
    }


def _users() -> Iterator[Object]:
    """Work carries the name of whoever handed it in."""
    group, controllers = _GROUP, rights.ACCOUNTS[names.CONTROLLERS]
    ours = f"system:serviceaccount:{controllers}:{names.CONTROLLERS}"
    # What CronRuns are made into carries the name of whoever made the CronRun.
    not_ours = {"name": "not-ours", "expression": f"request.userInfo.username != '{ours}'"}
    for kind, resource, path in (
        ("Run", "runs", ("spec",)),
        ("CronRun", "cronruns", ("spec", "template", "spec")),
    ):
        name = f"windlass-user-of-{resource}"
        user = f"object.{'.'.join(path)}.user"
        before = user.replace("object", "oldObject", 1)
        yield from _policy(group, "Mutating", name, {
            "matchConstraints": _matching(resource, "CREATE"),
            "matchConditions": [
                not_ours, {"name": "nobody", "expression": f"!has({user}) || {user} == ''"},
            ],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "JSONPatch",
                    "jsonPatch": {
                        "expression": f"[JSONPatch{{op: 'add', path: '/{'/'.join(path)}/user', "
                        "value: request.userInfo.username}]"
                    },
                }
            ],
        }, {})  # fmt: skip
        same = f"oldObject != null && has({before}) && {before} == {user}"
        yield from _policy(group, "Validating", name, {
            "matchConstraints": _matching(resource, "CREATE", "UPDATE"),
            "matchConditions": [
                not_ours,
                {
                    "name": "not-a-master",
                    "expression": "!('system:masters' in request.userInfo.groups)",
                },
            ],
            "failurePolicy": "Fail",
            "validations": [
                {
                    "expression": f"!has({user}) || {user} == '' || "
                    f"{user} == request.userInfo.username || ({same})",
                    "messageExpression": f"'{'.'.join(path)}.user of a {kind} must be \"' + "
                    "request.userInfo.username + '\", the caller; leave it out to have it "
                    "filled in'",
                    "reason": "Forbidden",
                }
            ],
        }, {"validationActions": ["Deny"]})  # fmt: skip


def _budgets() -> Iterator[Object]:
    """Whoever gives a queue leave to exceed its budget is named in it, whatever he wrote."""

    def of(which: str) -> str:
        return f"{which}.spec.budget.override"

    def who(which: str) -> str:
        return f"(has({of(which)}.by) ? {of(which)}.by : '')"

    has = "has({0}.spec.budget) && has({0}.spec.budget.override)"
    same = " && ".join(
        ["oldObject != null", has.format("oldObject")]
        + [f"{of('oldObject')}.{name} == {of('object')}.{name}" for name in ("until", "reason")]
        + [f"{who('oldObject')} == {who('object')}"]
    )
    yield from _policy(_GROUP, "Mutating", "windlass-override-of-queues", {
        "matchConstraints": _matching("queues", "CREATE", "UPDATE"),
        "matchConditions": [
            {"name": "overrides", "expression": has.format("object")},
            {"name": "new", "expression": f"!({same})"},
        ],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": "[JSONPatch{op: 'add', path: '/spec/budget/override/by', "
                    "value: request.userInfo.username}]"
                },
            }
        ],
    }, {})  # fmt: skip


def _queues() -> Iterator[Object]:
    """Work that names a queue which is for other namespaces is refused; each Queue is looked at.
    That a queue only holds others together cannot be seen in it alone: the scheduler says so."""
    for resource, path in (("runs", "spec"), ("cronruns", "spec.template.spec")):
        named, before = f"object.{path}.queue", f"oldObject.{path}.queue"
        allowed = "params.spec.namespaces"
        changed = f"oldObject == null || !has({before}) || {before} != {named}"
        yield from _policy(_GROUP, "Validating", f"windlass-queue-of-{resource}", {
            "paramKind": {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue"},
            "matchConstraints": _matching(resource, "CREATE", "UPDATE"),
            "matchConditions": [
                {"name": "names-one", "expression": f"has({named}) && ({changed})"},
            ],
            "failurePolicy": "Fail",
            "validations": [
                {
                    "expression": f"{named} != params.metadata.name || !has({allowed}) || "
                    f"size({allowed}) == 0 || object.metadata.namespace in {allowed}",
                    "messageExpression": "'QueueNotYours: queue ' + params.metadata.name + ' is "
                    "for other namespaces, not for ' + object.metadata.namespace + '; leave "
                    f"{path}.queue out to use your own, or see `windlass queue tree`'",
                    "reason": "Forbidden",
                }
            ],
        }, {
            "validationActions": ["Deny"],
            "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
        })  # fmt: skip


def _policy(group: str, word: str, name: str, spec: Object, binding: Object) -> Iterator[Object]:
    yield {
        "apiVersion": group, "kind": f"{word}AdmissionPolicy",
        "metadata": names.metadata(name, "policies"), "spec": spec,
    }  # fmt: skip
    yield {
        "apiVersion": group, "kind": f"{word}AdmissionPolicyBinding",
        "metadata": names.metadata(name, "policies"),
        "spec": {"policyName": name, **binding},
    }  # fmt: skip


def _matching(resource: str, *operations: str) -> Object:
    rule = {
        "apiGroups": ["windlass.dev"], "apiVersions": ["*"],
        "operations": list(operations), "resources": [resource],
    }  # fmt: skip
    return {"resourceRules": [rule]}


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
