"""Monitoring: what Prometheus scrapes, its ServiceAccount, alert rules, and dashboards for Grafana.

ServiceMonitor and PrometheusRule are kinds of the Prometheus Operator; a cluster without it gets
the role binding and the dashboards only. A test compares each metric that is named here with what
the components expose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from windlass.control.model import capabilities
from windlass.install import names
from windlass.install.manifests import dashboard
from windlass.install.names import Object
from windlass.install.options import Options

OPERATOR = ("ServiceMonitor", "PrometheusRule")
"""Kinds of the Prometheus Operator."""
_VERSION = "monitoring.coreos.com/v1"
_PART = "monitoring"
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 (a path)
_PORTS = {
    names.SCHEDULER: names.METRICS_PORT,
    names.CONTROLLERS: names.METRICS_PORT,
    names.SERVER: "https",
}
"""Service -> its port with /metrics."""


def objects(options: Options) -> Iterator[Object]:
    scraper = options.scraper()
    if scraper is None:
        return
    group = "rbac.authorization.k8s.io"
    yield {
        "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding",
        "metadata": names.metadata(names.SCRAPER, _PART),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": names.SCRAPER},
        "subjects": [{"kind": "ServiceAccount", "namespace": scraper[0], "name": scraper[1]}],
    }  # fmt: skip
    # With this one Prometheus finds the endpoints; kube-prometheus gives it per namespace.
    yield {
        "apiVersion": f"{group}/v1", "kind": "Role",
        "metadata": names.metadata(names.SCRAPER, _PART, names.SYSTEM),
        "rules": [
            _reading("", "services", "endpoints", "pods"),
            _reading("discovery.k8s.io", "endpointslices"),
        ],
    }  # fmt: skip
    yield {
        "apiVersion": f"{group}/v1", "kind": "RoleBinding",
        "metadata": names.metadata(names.SCRAPER, _PART, names.SYSTEM),
        "roleRef": {"apiGroup": group, "kind": "Role", "name": names.SCRAPER},
        "subjects": [{"kind": "ServiceAccount", "namespace": scraper[0], "name": scraper[1]}],
    }  # fmt: skip
    yield from (_scraped(service, port) for service, port in _PORTS.items())
    yield {
        "apiVersion": _VERSION, "kind": "PrometheusRule",
        "metadata": names.metadata("windlass", _PART, names.SYSTEM),
        "spec": {"groups": [{"name": "windlass", "rules": [_rule(*each) for each in ALERTS]}]},
    }  # fmt: skip
    shown = names.metadata("windlass-dashboard", _PART, names.SYSTEM)
    shown["labels"]["grafana_dashboard"] = "1"  # what Grafana's sidecar looks for
    yield {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": shown,
        "data": {"windlass.json": json.dumps(dashboard.queues_and_components(), indent=1)},
    }  # fmt: skip


def _reading(group: str, *resources: str) -> Object:
    return {"apiGroups": [group], "resources": [*resources], "verbs": ["get", "list", "watch"]}


def _scraped(service: str, port: str) -> Object:
    return {
        "apiVersion": _VERSION, "kind": "ServiceMonitor",
        "metadata": names.metadata(service, _PART, names.SYSTEM),
        "spec": {
            "selector": {"matchLabels": names.selector(service.removeprefix("windlass-"))},
            "endpoints": [
                {
                    "port": port,
                    "scheme": "https",
                    "path": "/metrics",
                    "interval": "30s",
                    "bearerTokenFile": _TOKEN,
                    "tlsConfig": {
                        "ca": {"configMap": {"name": capabilities.NAME, "key": "authority"}},
                        "serverName": f"{service}.{names.SYSTEM}.svc",
                    },
                }
            ],
        },
    }  # fmt: skip


ALERTS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "WindlassNobodySchedules",
        'absent(windlass_leading{set="scheduler"} == 1)',
        "5m",
        "critical",
        "No process leads as the scheduler of Windlass",
        "Waiting runs do not start; running ones continue. See windlass doctor, and the logs of "
        "deployment/windlass-scheduler in windlass-system.",
    ),
    (
        "WindlassNobodyControls",
        'absent(windlass_leading{set="controllers"} == 1)',
        "5m",
        "critical",
        "No process leads as the controllers of Windlass",
        "Runs neither start nor end. See windlass doctor, and the logs of "
        "deployment/windlass-controllers in windlass-system.",
    ),
    (
        "WindlassServerDown",
        'absent(up{job="windlass-server"} == 1)',
        "5m",
        "warning",
        "The server of Windlass cannot be scraped",
        "why, ps, uploads and archived logs do not answer, and namespaces are not deleted; runs "
        "continue. See windlass doctor.",
    ),
    (
        "WindlassDecisionsWrong",
        "increase(windlass_invariant_violations_total[1h]) > 0",
        "0m",
        "critical",
        "A decision violated the scheduling invariant {{ $labels.invariant }}",
        "This is a defect of Windlass: report it with the log of the scheduler.",
    ),
    (
        "WindlassDecisionsSlow",
        "histogram_quantile(0.99, sum by (le) "
        "(rate(windlass_scheduler_decide_seconds_bucket[15m]))) > 10",
        "15m",
        "warning",
        "Decisions of the scheduler take more than 10 s",
        "Runs start late. See the CPU of deployment/windlass-scheduler and the number of waiting "
        "runs.",
    ),
    (
        "WindlassReconcilesFail",
        "sum by (controller) (rate(windlass_controller_errors_total[15m])) > 0.1",
        "15m",
        "warning",
        "The controller {{ $labels.controller }} fails again and again",
        "See the logs of deployment/windlass-controllers in windlass-system.",
    ),
    (
        "WindlassQueueWaitsLong",
        "windlass_queue_oldest_wait_seconds > 86400 "
        "and windlass_queue_share < windlass_queue_entitlement",
        "30m",
        "warning",
        "Queue {{ $labels.queue }} is below its entitlement, and its oldest workload has waited "
        "for more than a day",
        "windlass why names the reason: often a size that no node has, or a budget.",
    ),
    (
        "WindlassAgentsMissing",
        "windlass_agents_reporting < 0.9 * max_over_time(windlass_agents_reporting[1d])",
        "15m",
        "warning",
        "More than a tenth of the node agents of Windlass stopped reporting",
        "Logs of deleted pods and utilization are missing from these nodes. See daemonset/"
        "windlass-agent in windlass-nodes.",
    ),
    (
        "WindlassLedgerFailing",
        "windlass_ledger_failing == 1",
        "10m",
        "warning",
        "The ledger of Windlass cannot be written",
        "Runs continue and are kept until it can. See the database of --ledger and the log of the "
        "server.",
    ),
    (
        "WindlassBudgetNearlyUsed",
        "windlass_budget_used_ratio > 0.9",
        "5m",
        "info",
        "Queue {{ $labels.queue }} has used 90 percent of its budget",
        "windlass budget get shows when it runs out.",
    ),
)
"""Name, expression, for how long, severity, summary, and what it means and what to do."""


def _rule(
    name: str, expression: str, lasting: str, severity: str, summary: str, description: str
) -> Object:
    return {
        "alert": name, "expr": expression, "for": lasting, "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }  # fmt: skip
