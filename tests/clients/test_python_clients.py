"""The `kubernetes` and `kr8s` packages, unchanged: list, watch, patch, delete."""

from __future__ import annotations

import itertools
from typing import Any

import kr8s
import kubernetes
import pytest
from kr8s.objects import APIObject, ConfigMap, Node, Pod, new_class

from tests.contract.objects import config_map, ok, pod, run
from tests.harness.embedded import EmbeddedServer
from tests.harness.rest import Rest

GROUP = ("windlass.dev", "v1alpha1")


# --- kubernetes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(embedded_server: EmbeddedServer) -> Any:
    return kubernetes.config.new_client_from_config(str(embedded_server.kubeconfig))


@pytest.fixture
def core_v1(client: Any) -> Any:
    return kubernetes.client.CoreV1Api(client)


@pytest.fixture
def custom(client: Any) -> Any:
    return kubernetes.client.CustomObjectsApi(client)


def test_kubernetes_config_maps(core_v1: Any, ns: str) -> None:
    core_v1.create_namespaced_config_map(ns, config_map("a", labels={"x": "1"}))
    listed = core_v1.list_namespaced_config_map(ns, label_selector="x=1")
    assert [item.metadata.name for item in listed.items] == ["a"]
    patched = core_v1.patch_namespaced_config_map("a", ns, {"data": {"k": "v"}})
    assert patched.data == {"key": "value", "k": "v"}
    core_v1.delete_namespaced_config_map("a", ns)
    with pytest.raises(kubernetes.client.ApiException) as raised:
        core_v1.read_namespaced_config_map("a", ns)
    assert raised.value.status == 404


def test_kubernetes_pods(core_v1: Any, ns: str) -> None:
    core_v1.create_namespaced_pod(ns, pod("a"))
    core_v1.patch_namespaced_pod_status("a", ns, {"status": {"phase": "Running"}})
    (found,) = core_v1.list_namespaced_pod(ns, field_selector="status.phase=Running").items
    assert found.spec.containers[0].command == ["sleep", "1000"]
    core_v1.delete_namespaced_pod("a", ns, grace_period_seconds=0)
    assert core_v1.list_namespaced_pod(ns).items == []


def test_kubernetes_nodes(core_v1: Any, ns: str) -> None:
    name = f"{ns}-node"
    core_v1.create_node({"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}})
    core_v1.patch_node(name, {"metadata": {"labels": {"zone": "a"}}})
    (found,) = core_v1.list_node(field_selector=f"metadata.name={name}").items
    assert (found.metadata.labels["zone"], found.status.capacity["cpu"]) == ("a", "4")
    core_v1.delete_node(name)


def test_kubernetes_runs(custom: Any, ns: str) -> None:
    custom.create_namespaced_custom_object(*GROUP, ns, "runs", run("a"))
    (found,) = custom.list_namespaced_custom_object(*GROUP, ns, "runs")["items"]
    assert found["metadata"]["generation"] == 1
    body = {"spec": {"priority": 60}}
    patched = custom.patch_namespaced_custom_object(*GROUP, ns, "runs", "a", body)
    assert patched["spec"]["priority"] == 60
    status = {"status": {"phase": "Running"}}
    custom.patch_namespaced_custom_object_status(*GROUP, ns, "runs", "a", status)
    found = custom.get_namespaced_custom_object(*GROUP, ns, "runs", "a")
    assert found["status"]["phase"] == "Running"
    custom.delete_namespaced_custom_object(*GROUP, ns, "runs", "a")
    assert custom.list_namespaced_custom_object(*GROUP, ns, "runs")["items"] == []


def test_kubernetes_conflict_is_an_error(core_v1: Any, ns: str) -> None:
    created = core_v1.create_namespaced_config_map(ns, config_map("a"))
    core_v1.patch_namespaced_config_map("a", ns, {"data": {"k": "1"}})
    created.data = {"k": "2"}
    with pytest.raises(kubernetes.client.ApiException) as raised:
        core_v1.replace_namespaced_config_map("a", ns, created)
    assert raised.value.status == 409


def test_kubernetes_watch_follows_changes(core_v1: Any, ns: str) -> None:
    core_v1.create_namespaced_config_map(ns, config_map("before"))
    version = core_v1.list_namespaced_config_map(ns).metadata.resource_version
    core_v1.create_namespaced_config_map(ns, config_map("a"))
    core_v1.patch_namespaced_config_map("a", ns, {"data": {"k": "1"}})
    core_v1.delete_namespaced_config_map("a", ns)
    stream = kubernetes.watch.Watch().stream(
        core_v1.list_namespaced_config_map, ns, resource_version=version, timeout_seconds=20
    )
    events = [(e["type"], e["object"].metadata.name) for e in itertools.islice(stream, 3)]
    assert events == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_kubernetes_watch_of_runs(custom: Any, ns: str) -> None:
    custom.create_namespaced_custom_object(*GROUP, ns, "runs", run("a"))
    stream = kubernetes.watch.Watch().stream(
        custom.list_namespaced_custom_object, *GROUP, ns, "runs", timeout_seconds=20
    )
    event = next(stream)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


def test_kubernetes_dynamic_client_discovers_runs(client: Any, ns: str) -> None:
    runs = kubernetes.dynamic.DynamicClient(client).resources.get(
        api_version="windlass.dev/v1alpha1", kind="Run"
    )
    runs.create(body=run("a"), namespace=ns)
    assert [item.metadata.name for item in runs.get(namespace=ns).items] == ["a"]
    runs.delete(name="a", namespace=ns)


# --- kr8s ---------------------------------------------------------------------------------------

Run = new_class(kind="Run", version="windlass.dev/v1alpha1", namespaced=True)


@pytest.fixture
def kr8s_api(embedded_server: EmbeddedServer) -> Any:
    return kr8s.api(kubeconfig=str(embedded_server.kubeconfig))


def names(found: Any) -> list[str]:
    return [item.name for item in found]


def objects(api: Any, kind: type[APIObject], ns: str, *bodies: dict[str, Any]) -> list[Any]:
    made = []
    for body in bodies:
        body["metadata"]["namespace"] = ns
        made.append(kind(body, api=api))
        made[-1].create()
    return made


def test_kr8s_config_maps(kr8s_api: Any, ns: str) -> None:
    (made,) = objects(kr8s_api, ConfigMap, ns, config_map("a", labels={"x": "1"}))
    assert names(kr8s_api.get("configmaps", namespace=ns, label_selector={"x": "1"})) == ["a"]
    made.patch({"data": {"k": "v"}})
    assert made.data == {"key": "value", "k": "v"}
    made.delete()
    assert not made.exists()


def test_kr8s_pods(kr8s_api: Any, ns: str) -> None:
    (made,) = objects(kr8s_api, Pod, ns, pod("a"))
    made.label({"x": "1"})
    (found,) = kr8s_api.get("pods", namespace=ns)
    assert (found.labels["x"], found.status.phase) == ("1", "Pending")
    made.delete()
    assert names(kr8s_api.get("pods", namespace=ns)) == []


def test_kr8s_nodes(kr8s_api: Any, rest: Rest, ns: str) -> None:
    name = f"{ns}-node"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    ok(rest.post("/api/v1/nodes", body), 201)
    node = Node.get(name, api=kr8s_api)
    node.cordon()
    node.refresh()
    assert node.unschedulable
    node.delete()


def test_kr8s_runs(kr8s_api: Any, ns: str) -> None:
    (made,) = objects(kr8s_api, Run, ns, run("a"))
    made.patch({"spec": {"priority": 60}})
    made.patch({"status": {"phase": "Running"}}, subresource="status")
    (found,) = kr8s_api.get("runs.windlass.dev", namespace=ns)
    assert (found.spec.priority, found.status.phase) == (60, "Running")
    made.delete()
    assert names(kr8s_api.get("runs.windlass.dev", namespace=ns)) == []


def test_kr8s_watch_follows_changes(kr8s_api: Any, ns: str) -> None:
    (made,) = objects(kr8s_api, Run, ns, run("a"))
    seen = []
    for event, item in kr8s_api.watch("runs.windlass.dev", namespace=ns):
        seen.append((event, item.name))
        if event == "ADDED":
            made.patch({"spec": {"priority": 60}})
        elif event == "MODIFIED":
            made.delete()
        else:
            break
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
