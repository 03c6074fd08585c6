"""`windlass top`: allocation and usage of nodes and runs, as bars; of many, the sums and a page."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from windlass.cli.lib import base, client_session, live
from windlass.cli.lib.output import Output, terminal_width
from windlass.kinds.types import core
from windlass.kinds.types import run as run_kind
from windlass.kinds.values import quantity
from windlass.store import errors

_PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
_MAIN = ("cpu", "memory")
_ACTIVE = "status.phase!=Succeeded,status.phase!=Failed"
_LEAST_BAR, _RUN_BAR = 6, 10
"""Characters of the shortest bar of a node, and of the bars of runs."""


@base.command(
    examples=(
        "windlass top nodes",
        "windlass top nodes --limit 100 --page 2",
        "windlass top runs -A",
        "windlass top nodes -w",
    )
)
@click.argument("what", type=click.Choice(("nodes", "runs")), default="nodes")
@click.option("-A", "--all-namespaces", is_flag=True, help="Runs of all namespaces.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Show N nodes or runs; --json has all of them.",
    metavar="N",
)
@click.option("--page", type=click.IntRange(1), default=1, help="The K-th N of them.", metavar="K")
@click.option("-w", "--watch", is_flag=True, help="Refresh in place until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5),
    default=2.0,
    help="Seconds between refreshes. [default: 2]",
)
@base.target_options
def top(
    out: Output,
    what: str,
    all_namespaces: bool,
    limit: int,
    page: int,
    watch: bool,
    interval: float,
    target: base.Target,
) -> None:
    """Show allocated and used resources, by node or by run: the sums, then the busiest ones."""

    async def work(session: client_session.Session) -> None:
        screen = live.Screen(out)
        while True:
            if what == "nodes":
                data = await nodes(session)
                lines = node_lines(out, data, limit, page)
            else:
                data = await (all_runs(session) if all_namespaces else runs(session))
                lines = run_lines(out, data, limit, page, everywhere=all_namespaces)
            if not watch:
                out.result(data, names=[each["name"] for each in data])
                for line in lines:
                    out.say(line)
                return
            out.item(data)
            screen.show(lines)
            await asyncio.sleep(interval)

    client_session.call(target, work)


async def nodes(session: client_session.Session) -> list[dict[str, Any]]:
    """Each node: its capacity, what is allocated, and what is used where the server measures it."""
    listed, given, usage = await asyncio.gather(
        session.store.list(core.Node),
        _given_by_node(session),
        _usage(session, f"{_PLATFORM}/nodemetrics"),
    )
    found = []
    for node in listed.items:
        amounts = node.status.allocatable or node.status.capacity or {}
        resources = {}
        for name, amount in amounts.items():
            total = quantity.milli(amount)
            if total and name != "pods":
                used = usage.get(node.name, {}).get(name)
                resources[name] = {
                    "total": total / 1000,
                    **(
                        {"given": given.get(node.name, {}).get(name, 0) / 1000}
                        if given is not None
                        else {}
                    ),
                    **({"used": used / 1000} if used is not None else {}),
                }
        found.append({"name": node.name, "ready": node.is_ready, "resources": resources})
    return found


async def all_runs(session: client_session.Session) -> list[dict[str, Any]]:
    """Those of all namespaces that the user may see."""
    try:
        return await runs(session, "")
    except errors.Forbidden:
        page = await session.read(f"{_PLATFORM}/ps", [("limit", "0"), ("finished", "0")])
        places = sorted({each["namespace"] for each in page["items"]})
        found = await asyncio.gather(*(runs(session, place) for place in places))
        return [each for listed in found for each in listed]


async def runs(
    session: client_session.Session, namespace: str | None = None
) -> list[dict[str, Any]]:
    """Each run of a namespace (None: the own one) that has pods on nodes: its requests, and what it
    uses."""
    namespace = session.namespace if namespace is None else namespace
    place = f"/namespaces/{namespace}" if namespace else ""
    listed, pods, usage = await asyncio.gather(
        session.store.list(run_kind.Run, namespace),
        session.store.list(
            core.Pod, namespace, label_selector=run_kind.LABEL_RUN, field_selector=_ACTIVE
        ),
        _usage(session, f"{_PLATFORM}{place}/podmetrics"),
    )
    by_run: dict[tuple[str, str], list[core.Pod]] = {}
    for pod in pods.items:
        name = (pod.metadata.labels or {}).get(run_kind.LABEL_RUN)
        if name and pod.status.phase in ("Pending", "Running"):
            by_run.setdefault((pod.namespace, name), []).append(pod)
    found = []
    for each in listed.items:
        mine = by_run.get((each.namespace, each.name), [])
        if each.finished or not mine:
            continue
        asked: dict[str, float] = {}
        used: dict[str, float] = {}
        for pod in mine:
            _add(asked, _requests(pod))
            _add(used, usage.get(pod.name, {}))
        resources = {
            name: {"given": asked[name] / 1000,
                   **({"used": used[name] / 1000} if name in used else {})}
            for name in asked
        }  # fmt: skip
        found.append(
            {"name": each.name, "namespace": each.namespace, "phase": each.status.phase,
             "members": len(mine), "resources": resources}
        )  # fmt: skip
    return found


def node_lines(
    out: Output, data: list[dict[str, Any]], limit: int = 20, page: int = 1
) -> list[str]:
    """Of more nodes than fit on the page: first the sums, then the busiest ones."""
    if len(data) <= limit and page == 1:
        return _bars(out, data) or ["No nodes."]
    absent = sum(not node["ready"] for node in data)
    name = f"{len(data)} nodes" + (f", {absent} NOT ready" if absent else "")
    total = {"name": name, "ready": True, "resources": _sums(data)}
    shown = _page(sorted(data, key=_busiest_first), limit, page)
    return [*_bars(out, [total, *shown]), *_rest("nodes", len(data), limit, page)]


def _sums(data: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of all nodes; only what is known of each node that has the resource."""
    by_name: dict[str, list[dict[str, float]]] = {}
    for node in data:
        for name, amount in node["resources"].items():
            by_name.setdefault(name, []).append(amount)
    return {
        name: {
            key: sum(each[key] for each in listed)
            for key in ("total", "given", "used")
            if all(key in each for each in listed)
        }
        for name, listed in by_name.items()
    }


def _busiest_first(node: dict[str, Any]) -> tuple[bool, float, str]:
    """Nodes that are not ready come first."""
    parts = [
        max(amount.get("given", 0.0), amount.get("used", 0.0)) / amount["total"]
        for amount in node["resources"].values()
    ]
    return node["ready"], -max(parts, default=0.0), node["name"]


def _page(data: list[dict[str, Any]], limit: int, page: int) -> list[dict[str, Any]]:
    return data[(page - 1) * limit : page * limit]


def _rest(what: str, number: int, limit: int, page: int) -> list[str]:
    """Which part of the whole the page is, and how to see the next one."""
    first, last = (page - 1) * limit + 1, min(page * limit, number)
    pages = -(-number // limit)
    if page > pages:
        return [f"There are {number} {what}, {pages} pages of {limit}."]
    more = f"; next: --page {page + 1}" if last < number else ""
    return [f"{what.capitalize()} {first} to {last} of {number}, the busiest first{more}."]


def _bars(out: Output, data: list[dict[str, Any]]) -> list[str]:
    """Bars fill what the amounts leave of the terminal; where that is little, there are none."""
    every = [item for node in data for item in _ordered(node["resources"])]
    label = max((len(_short(name)) for name, _ in every), default=0)
    texts = max((len(_node_amounts(name, amount)) for name, amount in every), default=0)
    width = min(30, terminal_width() - texts - label - 4)
    lines = []
    for node in data:
        lines.append(node["name"] + ("" if node["ready"] else "  NOT ready"))
        for name, amount in _ordered(node["resources"]):
            part = amount.get("used", amount.get("given", 0.0)) / amount["total"]
            bar = f"{live.bar(out, part, width)} " if width >= _LEAST_BAR else ""
            lines.append(f"  {_short(name):{label}} {bar}{_node_amounts(name, amount)}")
    return lines


def _node_amounts(name: str, amount: dict[str, float]) -> str:
    """`1.2 used of 2 (0.9 allocated)`"""
    total = _amount(name, amount["total"])
    given = f"{_amount(name, amount['given'])} allocated" if "given" in amount else ""
    if "used" not in amount:
        return f"{given} of {total}" if given else f"of {total}"
    used = f"{_amount(name, amount['used'])} used of {total}"
    return f"{used} ({given})" if given else used


def run_lines(
    out: Output,
    data: list[dict[str, Any]],
    limit: int = 20,
    page: int = 1,
    *,
    everywhere: bool = False,
) -> list[str]:
    if not data:
        return ["No runs are running."]
    shown = _page(sorted(data, key=_largest_first), limit, page)
    more = _rest("runs", len(data), limit, page) if len(shown) < len(data) else []
    if not shown:
        return more
    header = ["NAMESPACE"] if everywhere else []
    header += ["NAME", "PHASE", "REPLICAS", "CPU", "MEMORY", "DEVICES"]
    rows = [_run_row(out, each, _RUN_BAR, everywhere) for each in shown]
    if max(map(len, out.table_lines(header, rows, whole=True))) > terminal_width():
        rows = [_run_row(out, each, 0, everywhere) for each in shown]
    return [*out.table_lines(header, rows, numbers=("CPU", "MEMORY")), *more]


def _largest_first(each: dict[str, Any]) -> tuple[float, float, str, str]:
    """By devices, then by processors, used or requested."""
    devices = sum(a["given"] for name, a in each["resources"].items() if "/" in name)
    cpu = each["resources"].get("cpu", {"given": 0.0})
    busy = max(cpu["given"], cpu.get("used", 0.0))
    return -devices, -busy, each["namespace"], each["name"]


def _run_row(out: Output, each: dict[str, Any], width: int, everywhere: bool) -> list[str]:
    cells = [each["namespace"]] if everywhere else []
    cells += [each["name"], each["phase"], str(each["members"])]
    for name in _MAIN:
        amount = each["resources"].get(name, {"given": 0.0})
        used = _amount(name, amount["used"]) if "used" in amount else "?"
        part = amount.get("used", 0.0) / amount["given"] if amount["given"] else 0.0
        bar = f"{live.bar(out, part, width)} " if width else ""
        cells.append(f"{bar}{used}/{_amount(name, amount['given'])}")
    devices = [
        f"{value['given']:g} {_short(key)}"
        for key, value in each["resources"].items()
        if key not in _MAIN
    ]
    return [*cells, " ".join(devices) or "-"]


async def _given_by_node(session: client_session.Session) -> dict[str, dict[str, float]] | None:
    """Requests of the pods on each node; None if the user may not list the pods of others."""
    found: dict[str, dict[str, float]] = {}
    try:
        pods = (await session.store.list(core.Pod, field_selector=_ACTIVE)).items
    except errors.Forbidden:
        return None
    for pod in pods:
        if pod.spec.node_name and pod.status.phase in ("Pending", "Running"):
            _add(found.setdefault(pod.spec.node_name, {}), _requests(pod))
    return found


def _requests(pod: core.Pod) -> dict[str, float]:
    total: dict[str, float] = {}
    for container in pod.spec.containers or ():
        asked = container.resources.requests if container.resources else None
        limits = container.resources.limits if container.resources else None
        _add(total, {k: quantity.milli(v) for k, v in {**(limits or {}), **(asked or {})}.items()})
    return total


async def _usage(session: client_session.Session, path: str) -> dict[str, dict[str, float]]:
    """Measured usage in the format of metrics.k8s.io; empty where the server has none."""
    try:
        answer = await session.read(path)
    except errors.ApiError:
        return {}
    found: dict[str, dict[str, float]] = {}
    for item in answer.get("items") or ():
        parts = [item["usage"]] if "usage" in item else [c["usage"] for c in item["containers"]]
        total = found.setdefault(item["metadata"]["name"], {})
        for part in parts:
            _add(total, {name: quantity.milli(amount) for name, amount in part.items()})
    return found


def _add(into: dict[str, float], more: dict[str, Any]) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount


def _ordered(resources: dict[str, Any]) -> list[tuple[str, Any]]:
    first = [(name, resources[name]) for name in _MAIN if name in resources]
    return first + [(k, v) for k, v in sorted(resources.items()) if k not in _MAIN]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _amount(name: str, amount: float) -> str:
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages"):
        for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount >= size:
                return f"{amount / size:.3g}{unit}"
        return f"{amount:.0f}"
    return f"{amount:.0f}" if amount >= 1000 else f"{amount:.3g}"
