"""The dashboard for Grafana: queues first, then the components."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_QUEUE = '{queue=~"$queue"}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def queues_and_components() -> Json:
    titled = (
        ("Queues", _queues()),
        ("Devices and cost", _devices()),
        ("Scheduler and controllers", _components()),
        ("Server and ledger", _server()),
    )
    panels: list[Json] = []
    y = 0
    for title, listed in titled:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [],
             "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1}}
        )  # fmt: skip
        y += 1
        for index, panel in enumerate(listed):
            row, column = divmod(index * _WIDTH, _COLUMNS)
            where = {"x": column, "y": y + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(panel | {"gridPos": where})
        y += -(-len(listed) * _WIDTH // _COLUMNS) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "windlass", "title": "Windlass", "tags": ["windlass"], "schemaVersion": 39,
        "editable": True, "refresh": "1m", "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": _variables()}, "panels": panels,
    }  # fmt: skip


def _queues() -> list[Json]:
    waits = f"sum by (le) (rate(windlass_queue_wait_seconds_bucket{_QUEUE}[1h]))"
    return [
        _panel("Waiting", "short", (f"windlass_queue_waiting_workloads{_QUEUE}", "{{queue}}")),
        _panel("Admitted", "short", (f"windlass_queue_admitted_workloads{_QUEUE}", "{{queue}}")),
        _panel(
            "Wait of the oldest", "s", (f"windlass_queue_oldest_wait_seconds{_QUEUE}", "{{queue}}")
        ),
        _panel(
            "Share (solid) and entitlement", "percentunit",
            (f"windlass_queue_share{_QUEUE}", "{{queue}}"),
            (f"windlass_queue_entitlement{_QUEUE}", "{{queue}}: entitled"),
        ),
        _panel(
            "Wait until the first start", "s",
            (f"histogram_quantile(0.5, {waits})", "median"),
            (f"histogram_quantile(0.95, {waits})", "95 percent"),
        ),
        _panel(
            "Evictions and restarts per hour", "short",
            (f"increase(windlass_queue_evictions_total{_QUEUE}[1h])", "{{queue}}: evicted"),
            (f"increase(windlass_queue_restarts_total{_QUEUE}[1h])", "{{queue}}: restarted"),
        ),
        _panel(
            "Used and guaranteed", "short",
            (f"windlass_queue_used{_QUEUE}", "{{queue}} {{resource}}"),
            (f"windlass_queue_guarantee{_QUEUE}", "{{queue}} {{resource}}: guaranteed"),
        ),
        _panel("Budget used", "percentunit", ("windlass_budget_used_ratio", "{{queue}}")),
    ]  # fmt: skip


def _devices() -> list[Json]:
    return [
        _panel("Devices by state", "short", ("windlass_fleet_devices", "{{device}} {{state}}")),
        _panel("Devices by team", "short",
               ("windlass_team_devices", "{{team}} {{device}} {{state}}")),
        _panel("Cost this month", "short", ("windlass_usage_cost_units", "{{team}}")),
    ]  # fmt: skip


def _components() -> list[Json]:
    decisions = "sum by (le) (rate(windlass_scheduler_decide_seconds_bucket[5m]))"
    return [
        _panel("Leaders", "short", ("sum by (set) (windlass_leading)", "{{set}}")),
        _panel(
            "Time of a decision", "s",
            (f"histogram_quantile(0.5, {decisions})", "median"),
            (f"histogram_quantile(0.99, {decisions})", "99 percent"),
        ),
        _panel("Since the last decision", "s", (
            "time() - max(windlass_scheduler_last_decision_timestamp_seconds > 0)", "seconds")),
        _panel("Work queues", "short", ("windlass_controller_queue_depth", "{{controller}}")),
        _panel(
            "Failed reconciles per second", "short",
            ("sum by (controller) (rate(windlass_controller_errors_total[5m]))", "{{controller}}"),
        ),
        _panel("Invariant violations", "short",
               ("increase(windlass_invariant_violations_total[1h])", "{{invariant}}")),
    ]  # fmt: skip


def _server() -> list[Json]:
    return [
        _panel("Requests per second", "reqps",
               ("sum by (code) (rate(windlass_api_requests_total[5m]))", "{{code}}")),
        _panel(
            "Time of a response, 99 percent", "s",
            ("histogram_quantile(0.99, sum by (le, verb) "
             "(rate(windlass_api_request_seconds_bucket[5m])))", "{{verb}}"),
        ),
        _panel("Node agents that report", "short", ("windlass_agents_reporting", "agents")),
        _panel(
            "Ledger", "short",
            ("windlass_ledger_behind", "objects behind"),
            ("windlass_ledger_failing", "failing"),
        ),
    ]  # fmt: skip


def _panel(title: str, unit: str, *queries: tuple[str, str]) -> Json:
    return {
        "type": "timeseries", "title": title, "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression,
             "legendFormat": legend}
            for index, (expression, legend) in enumerate(queries)
        ],
    }  # fmt: skip


def _variables() -> list[Json]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "queue", "type": "query", "label": "Queue", "datasource": _SOURCE,
            "query": "label_values(windlass_queue_waiting_workloads, queue)",
            "includeAll": True, "multi": True, "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip
