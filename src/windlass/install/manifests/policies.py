"""Namespaces, priorities and admission policies of an installation."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.control.model import capabilities
from windlass.install import names
from windlass.install.manifests import rbac
from windlass.install.names import Object
from windlass.kinds.annotations import OF_AGENTS
from windlass.kinds.schema import cel_rules
from windlass.kinds.types import run
from windlass.server.auth import identity, ownership, privileges
from windlass.server.platform import paths

_GROUP = "admissionregistration.k8s.io/v1"
_SHARES = 40
"""As kube-scheduler's own level; other ServiceAccounts share one level."""
_OURS = f"system:serviceaccount:{rbac.ACCOUNTS[names.CONTROLLERS]}:{names.CONTROLLERS}"
"""The account of the controllers: they create what users were allowed to ask for."""
HOST_MOUNTS = "hostMounts"
"""Key of the ConfigMap `engine`: folders of nodes that members' Runs may mount."""
_NO_MASTER = f"!('{identity.MASTERS}' in request.userInfo.groups)"
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
    """The priority of the components' pods, and the flow control of their API requests, which must
    not queue behind those of users."""
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
                            "serviceAccount": {"name": each, "namespace": rbac.ACCOUNTS[each]},
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


def connections(scraper: tuple[str, str] | None) -> Iterator[Object]:
    """Connections to our own pods. Those that serve no requests accept them only from Prometheus,
    if it is named. The server accepts them from everywhere, at its port alone: pods of all
    namespaces and the API server, whose address no policy can name, call it. Probes of the node's
    kubelet are always allowed."""
    rules = []
    if scraper is not None:
        where = {"matchLabels": {"kubernetes.io/metadata.name": scraper[0]}}
        port = {"port": names.METRICS_PORT, "protocol": "TCP"}
        rules = [{"from": [{"namespaceSelector": where}], "ports": [port]}]
    served = [{"ports": [{"port": names.API_PORT, "protocol": "TCP"}]}]
    for part, ingress in (
        (names.SCHEDULER, rules), (names.CONTROLLERS, rules), (names.AGENT, []),
        (names.SERVER, served),
    ):  # fmt: skip
        word = part.removeprefix("windlass-")
        yield {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": names.metadata(part, "policies", rbac.ACCOUNTS[part]),
            "spec": {
                "podSelector": {"matchLabels": names.selector(word)},
                "policyTypes": ["Ingress"],
                **({"ingress": ingress} if ingress else {}),  # without it: from nowhere
            },
        }  # fmt: skip


def agents() -> Iterator[Object]:
    """A node's agent only annotates pods of Runs on its own node, with the annotations that are
    its own. Its token is bound to its pod, and so names the node."""
    listed = ", ".join(f"'{name}'" for name in OF_AGENTS)
    bound = f"'{identity.BOUND_NODE}'"
    agent = f"system:serviceaccount:{rbac.ACCOUNTS[names.AGENT]}:{names.AGENT}"
    rules = [
        (
            f"has(object.spec.nodeName) && {bound} in request.userInfo.extra && "
            f"request.userInfo.extra[{bound}] == [object.spec.nodeName]",
            "an agent may only annotate pods of its own node",
        ),
        (
            f"has(oldObject.metadata.labels) && '{run.LABEL_RUN}' in oldObject.metadata.labels",
            "an agent may only annotate pods of Runs",
        ),
        (
            "object.spec == oldObject.spec && "
            + " && ".join(
                f"object.metadata.?{each} == oldObject.metadata.?{each}"
                for each in ("labels", "ownerReferences", "finalizers")
            ),
            "an agent may only write annotations",
        ),
        (
            "variables.after.all(k, k in variables.own || (k in variables.before && "
            "variables.before[k] == variables.after[k])) && "
            "variables.before.all(k, k in variables.own || k in variables.after)",
            f"an agent may only write the annotations {', '.join(OF_AGENTS)}",
        ),
    ]
    yield from _policy(_GROUP, "Validating", "windlass-pods-of-agents", {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                }
            ]
        },
        "matchConditions": [
            {"name": "agents", "expression": f"request.userInfo.username == '{agent}'"},
        ],
        "failurePolicy": "Fail",
        "variables": [
            {"name": "own", "expression": f"[{listed}]"},
            *(
                {"name": name, "expression": f"{which}.metadata.?annotations.orValue({{}})"}
                for name, which in (("before", "oldObject"), ("after", "object"))
            ),
        ],
        "validations": [
            {"expression": rule, "message": message, "reason": "Forbidden"}
            for rule, message in rules
        ],
    }, {"validationActions": ["Deny"]})  # fmt: skip


def admission() -> Iterator[Object]:
    """The admission policies for what the embedded server checks itself: the user of a Run, what
    keeps it for the ledger, and the queues that a namespace may use."""
    yield from changes()
    yield from unaccounted()
    yield from _users()
    yield from _ledger()
    yield from _budgets()
    yield from _queues()
    yield from _privileges()
    yield from _host_mounts()


def changes() -> Iterator[Object]:
    """Rules for immutable fields, evaluated only if more than the status is written."""
    for kind in dict.fromkeys(change.kind for change in cel_rules.CHANGES):
        resource = kind.resource.plural
        yield from _policy(_GROUP, "Validating", f"windlass-changes-of-{resource}", {
            "matchConstraints": _matching(resource, "UPDATE"),
            "failurePolicy": "Fail",
            "validations": [_kept(each) for each in cel_rules.CHANGES if each.kind is kind],
        }, {"validationActions": ["Deny"]})  # fmt: skip


def unaccounted() -> Iterator[Object]:
    """Removes managedFields from Runs, unless their creator uses server-side apply: they are larger
    than the Run and are rewritten with each status (docs/design/performance.md). Once removed, the
    API server does not add them again."""
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


def _kept(change: cel_rules.Change) -> Object:
    if change.struct is run.Role:
        broken = f"!({change.cel.format(new='r', old='o')})"
        return {
            "expression": "object.spec.roles.all(r, !oldObject.spec.roles.exists(o, "
            f"o.name == r.name && {broken}))",
            "message": f"spec.roles[].{change.path}: {change.message}",
        }
    if change.struct is run.Array:
        kept = change.cel.format(new="object.spec.array", old="oldObject.spec.array")
        return {
            "expression": f"!has(object.spec.array) || !has(oldObject.spec.array) || ({kept})",
            "message": f"spec.array.{change.path}: {change.message}",
        }
    return {
        "expression": change.cel.format(new="object.spec", old="oldObject.spec"),
        "message": f"spec.{change.path}: {change.message}",
    }


def _users() -> Iterator[Object]:
    """Sets the user of a Run or CronRun to the user that creates it, and that of a CronRun to the
    user that changes what it starts or when."""
    group = _GROUP
    changed = " || ".join(
        f"has(object.spec.{name}) != has(oldObject.spec.{name}) || "
        f"(has(object.spec.{name}) && object.spec.{name} != oldObject.spec.{name})"
        for name in ownership.OF_THE_USER
    )
    # A Run of a CronRun has the user of the CronRun.
    not_ours = {"name": "not-ours", "expression": f"request.userInfo.username != '{_OURS}'"}
    for kind, resource, path in (
        ("Run", "runs", ("spec",)),
        ("CronRun", "cronruns", ("spec", "template", "spec")),
    ):
        name = f"windlass-user-of-{resource}"
        user = f"object.{'.'.join(path)}.user"
        before = user.replace("object", "oldObject", 1)
        same = f"oldObject != null && has({before}) && {before} == {user}"
        without_user, operations = f"!has({user}) || {user} == ''", ["CREATE"]
        if kind == "CronRun":
            operations.append("UPDATE")
            without_user += f" || ({same} && {_NO_MASTER} && ({changed}))"
            same += f" && !({changed})"
        yield from _policy(group, "Mutating", name, {
            "matchConstraints": _matching(resource, *operations),
            "matchConditions": [not_ours, {"name": "without-user", "expression": without_user}],
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
        yield from _policy(group, "Validating", name, {
            "matchConstraints": _matching(resource, "CREATE", "UPDATE"),
            "matchConditions": [not_ours, {"name": "not-a-master", "expression": _NO_MASTER}],
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


def _ledger() -> Iterator[Object]:
    """Only the platform and administrators of the cluster remove the finalizer that keeps a Run
    until its usage is recorded. A deletion is not an update, and adds only finalizers of others."""
    kept = f"'{run.FINALIZER_LEDGER}' in {{}}.metadata.?finalizers.orValue([])"
    right = ownership.removing_finalizers("", "")
    may = (
        f"authorizer.group('{right.group}').resource('{right.resource}')"
        f".subresource('{right.subresource}').namespace(object.metadata.namespace)"
        f".check('{right.verb}').allowed()"
    )
    yield from _policy(_GROUP, "Validating", "windlass-ledger-of-runs", {
        "matchConstraints": _matching("runs", "UPDATE"),
        "matchConditions": [
            {
                "name": "removes-it",
                "expression": f"{kept.format('oldObject')} && !({kept.format('object')})",
            },
        ],
        "failurePolicy": "Fail",
        "validations": [
            {"expression": may, "message": ownership.KEPT_FOR_LEDGER, "reason": "Forbidden"}
        ],
    }, {"validationActions": ["Deny"]})  # fmt: skip


def _budgets() -> Iterator[Object]:
    """Records the user that permits a queue to exceed its budget."""

    def of(which: str) -> str:
        return f"{which}.spec.budget.override"

    def user_of(which: str) -> str:
        return f"(has({of(which)}.by) ? {of(which)}.by : '')"

    has = "has({0}.spec.budget) && has({0}.spec.budget.override)"
    same = " && ".join(
        ["oldObject != null", has.format("oldObject")]
        + [f"{of('oldObject')}.{name} == {of('object')}.{name}" for name in ("until", "reason")]
        + [f"{user_of('oldObject')} == {user_of('object')}"]
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
    """Rejects Runs and CronRuns whose queue is for other namespaces. Whether a queue has child
    queues cannot be seen in the Queue alone: the scheduler reports that."""
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


def _privileges() -> Iterator[Object]:
    """Only a user with the verb `prioritize` on runs gets a priority above the default, or is not
    preempted. The controllers copy what the user of a CronRun was allowed."""
    may = (
        "authorizer.group('windlass.dev').resource('runs').namespace(object.metadata.namespace)"
        f".check('{privileges.VERB}').allowed()"
    )
    for key, path in privileges.SPECS.items():
        resource, field = key.partition(".")[0], ".".join(path)
        rules = []
        for name, fine, message in (
            ("priority", f"<= {privileges.HIGHEST}", privileges.TOO_HIGH),
            ("preemptible", "== true", privileges.NOT_PREEMPTIBLE),
        ):
            new, old = f"object.{field}.{name}", f"oldObject.{field}.{name}"
            same = f"oldObject != null && has({old}) && {old} == {new}"
            if len(path) > 1:  # the command beside it may be another one
                same = f"oldObject != null && oldObject.{field} == object.{field}"
            rules.append(
                {
                    "expression": f"!has({new}) || {new} {fine} || ({same}) || {may}",
                    "message": message,
                    "reason": "Forbidden",
                }
            )
        yield from _policy(_GROUP, "Validating", f"windlass-privileges-of-{resource}", {
            "matchConstraints": _matching(resource, "CREATE", "UPDATE"),
            "matchConditions": [
                {"name": "not-ours", "expression": f"request.userInfo.username != '{_OURS}'"},
            ],
            "failurePolicy": "Fail",
            "validations": rules,
        }, {"validationActions": ["Deny"]})  # fmt: skip


def _host_mounts() -> Iterator[Object]:
    """A Run mounts a folder of a node only if it is one of those that the administrator listed, or
    if its user may create pods and could mount it anyway. Only listed folders themselves: below
    one that jobs write to, a symbolic link could lead anywhere."""
    may = (
        "authorizer.group('').resource('pods').namespace(object.metadata.namespace)"
        ".check('create').allowed()"
    )
    listed = f"(has(params.data) && '{HOST_MOUNTS}' in params.data ? "
    listed += f"params.data['{HOST_MOUNTS}'].split(',') : [])"
    for key, path in privileges.SPECS.items():
        resource, spec = key.partition(".")[0], f"object.{'.'.join(path)}"
        before = spec.replace("object", "oldObject", 1)
        yield from _policy(_GROUP, "Validating", f"windlass-host-mounts-of-{resource}", {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": _matching(resource, "CREATE", "UPDATE"),
            "matchConditions": [
                {"name": "not-ours", "expression": f"request.userInfo.username != '{_OURS}'"},
                {
                    "name": "mounts-a-node",
                    "expression": f"has({spec}.mounts) && "
                    f"{spec}.mounts.exists(m, m.from.startsWith('host:'))",
                },
                # Who edits a CronRun edits the command as well as the mounts.
                {
                    "name": "changed",
                    "expression": f"oldObject == null || {before} != {spec}" if len(path) > 1
                    else f"oldObject == null || !has({before}.mounts) || "
                    f"{before}.mounts != {spec}.mounts",
                },
            ],
            "failurePolicy": "Fail",
            "validations": [
                {
                    "expression": f"{may} || {spec}.mounts.all(m, !m.from.startsWith('host:') || "
                    f"m.from.substring(5) in {listed})",
                    "message": "a folder of a node can be mounted only if the administrator lists "
                    "it with windlass install --host-mounts DIR; mount a claim: instead",
                    "reason": "Forbidden",
                }
            ],
        }, {
            "validationActions": ["Deny"],
            "paramRef": {
                "name": capabilities.NAME, "namespace": capabilities.NAMESPACE,
                "parameterNotFoundAction": "Deny",
            },
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
            f"{paths.VERSION}.{paths.GROUP}", "server"
        ),
        "spec": {
            "group": paths.GROUP,
            "version": paths.VERSION,
            "service": {"namespace": names.SYSTEM, "name": names.SERVER, "port": 443},
            "caBundle": bundle,
            "groupPriorityMinimum": 1000,
            "versionPriority": 10,
        },
    }  # fmt: skip
