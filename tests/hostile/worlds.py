"""The world in which attacks happen, the same on both engines.

Team `red` has the attackers: rita, a member, and ada, its administrator. Team `blue` is the victim:
bob is a member of it, vic may only look. Nora is in no team. Both teams have runs and pods; blue
has an object of every kind that a team can have, with secrets (`CANARIES`) in all of them.
"""

from __future__ import annotations

import abc
import base64
import dataclasses
import hashlib
import json
import ssl
from collections import Counter
from typing import Any

from tests.contract.objects import ok
from tests.harness import rest
from tests.hostile.attack import API, CORE, PLATFORM, RBAC

Json = dict[str, Any]
CANARIES = tuple(f"canary-{word}" for word in ("secret", "config", "environment", "code", "log"))
"""What only team blue may read."""
CODE = b"canary-code of team blue"
DIGEST = f"sha256:{hashlib.sha256(CODE).hexdigest()}"
ROLES = {"red": {"rita": "member", "ada": "admin"}, "blue": {"bob": "member", "vic": "viewer"}}
OWN = ("red", "hostile-")
"""Namespace, and how the names of what attackers make for themselves begin."""
_VOLATILE_STATUS = ("Node", "Queue", "Reservation", "CronRun", "PriceList", "APIService")
_RUN_STATUS = ("phase", "attempt", "assignment", "retries", "restarts", "exitCode", "eviction")
_LAST_USED = "windlass.dev/last-used"


@dataclasses.dataclass(frozen=True)
class Caller:
    token: str = ""
    user: str = ""
    """As the audit log names it; "" if it is not known."""


class World(abc.ABC):
    engine: str
    admin: rest.Rest

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.values: dict[str, str] = {}
        self.rows = 0
        """Attacks so far: `$n` in a row, so that what one makes is not in the way of the next."""
        self.sent: Counter[tuple[str, int]] = Counter()
        """Refusals by user and status, as the attackers saw them."""

    # --- what engines do differently

    @abc.abstractmethod
    def door(self, name: str) -> tuple[str, ssl.SSLContext]:
        """URL and TLS context: `api`, or `server`, past the API server of a cluster."""

    @abc.abstractmethod
    def audited(self) -> Counter[tuple[str, int]]:
        """Refusals in the audit log, by user and status."""

    @abc.abstractmethod
    def lists(self) -> list[str]:
        """Paths of all objects that no attack may change."""

    @abc.abstractmethod
    def stop(self) -> None: ...

    def client(self, caller: str, door: str = "api") -> rest.Rest:
        url, tls = self.door(door)
        return rest.Rest(url, tls, self.callers[caller].token, timeout=20)

    # --- the state that must not change

    def digest(self) -> dict[str, str]:
        """Path -> a hash of what is there."""
        found = {}
        for path in self.lists():
            listed = ok(self.admin.get(path))
            for item in listed["items"]:
                about = item["metadata"]
                if about.get("namespace") == OWN[0] and about["name"].startswith(OWN[1]):
                    continue
                key = f"{path}/{about.get('namespace', '')}/{about['name']}"
                found[key] = _hash(_lasting(item, listed["kind"].removesuffix("List")))
        bob = self._bob
        for path in (f"blobs/{DIGEST}", f"mailboxes/{self.values['box']}/events", "steps"):
            answer = bob.get(f"{PLATFORM}/namespaces/blue/{path}")
            found[path] = f"{answer.status} {hashlib.sha256(answer.body).hexdigest()}"
        return found

    def make(self) -> None:
        """Teams and the victim's things; callers with tokens are there already."""
        for namespace, people in ROLES.items():
            ok(self.admin.post(f"{CORE}/namespaces", {"metadata": {"name": namespace}}), 201)
            for user, role in people.items():
                path = f"{RBAC}/namespaces/{namespace}/rolebindings"
                ok(self.admin.post(path, binding(user, role)), 201)
        self._bob = self.client("bob")
        self._wait_for_rights()
        self._make_objects()

    @abc.abstractmethod
    def _wait_for_rights(self) -> None:
        """Until bob may create Runs."""

    def _make_objects(self) -> None:
        bob, blue, values = self._bob, f"{CORE}/namespaces/blue", self.values
        secret = {"metadata": {"name": "keys"}, "data": {"key": _base64("canary-secret")}}
        values["secret_uid"] = ok(bob.post(f"{blue}/secrets", secret), 201)["metadata"]["uid"]
        config = {"metadata": {"name": "settings"}, "data": {"key": "canary-config"}}
        values["config_uid"] = ok(bob.post(f"{blue}/configmaps", config), 201)["metadata"]["uid"]
        service = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
        ok(bob.post(f"{blue}/services", service), 201)
        sent = bob.request(
            "PATCH", f"{PLATFORM}/namespaces/blue/blobs/{DIGEST}", CODE,
            content_type="application/octet-stream",
            headers={"Upload-Offset": "0", "Upload-Length": str(len(CODE))},
        )  # fmt: skip
        assert sent.status == 204, sent.summary
        role = {
            "command": ["true"], "env": {"PASSWORD": "canary-environment"},
            "resources": {"cpu": "100m", "memory": "32Mi"},
        }  # fmt: skip
        spec = {"roles": [role], "suspend": True, "code": {"digest": DIGEST}}
        plan = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "plan"},
                "spec": spec}  # fmt: skip
        runs = f"{API}/namespaces/blue/runs"
        values["run_uid"] = ok(bob.post(runs, plan), 201)["metadata"]["uid"]
        nightly = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "CronRun",
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 0 1 1 *", "suspend": True, "template": {"spec": spec}},
        }  # fmt: skip
        ok(bob.post(f"{API}/namespaces/blue/cronruns", nightly), 201)
        box = ok(bob.post(f"{PLATFORM}/namespaces/blue/mailboxes", {}), 201)
        values |= {"box": box["name"], "box_token": box["token"], "digest": DIGEST}
        call = bob.request("PUT", f"{PLATFORM}/namespaces/blue/mailboxes/{box['name']}/calls/0",
                           b"canary-code", content_type="application/octet-stream")  # fmt: skip
        assert call.status == 204, call.summary
        ok(self.admin.post(f"{API}/queues", {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue",
            "metadata": {"name": "of-blue"}, "spec": {"namespaces": ["blue"]}}), 201)  # fmt: skip
        ok(self.admin.post(f"{API}/reservations", {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Reservation",
            "metadata": {"name": "far"},
            "spec": {"from": "2090-01-01T00:00:00Z", "to": "2090-01-02T00:00:00Z",
                     "amounts": {"cpu": "1"}, "for": {"namespaces": ["blue"]}}}), 201)  # fmt: skip


def binding(user: str, role: str) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"windlass-{role}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }  # fmt: skip


def _lasting(item: Json, kind: str) -> Json:
    """What nobody but an attacker would change of an object."""
    about = {
        key: value for key, value in item["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }  # fmt: skip
    notes = {k: v for k, v in about.pop("annotations", {}).items() if k != _LAST_USED}
    kept = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    status = item.get("status") or {}
    if kind == "Run":
        status = {key: status[key] for key in _RUN_STATUS if key in status}
    elif kind == "Pod":
        status = {"phase": status.get("phase")}
    elif kind in _VOLATILE_STATUS:
        status = {}
    return kept | {"metadata": about | {"annotations": notes}, "status": status}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
