"""Teams: a namespace, a queue, roles and tokens.

A team is not an object of its own: it is a Namespace and a Queue of its name and RoleBindings to
the roles of Windlass, on both engines. All functions are idempotent: existing objects stay, and
repeating an interrupted call finishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from windlass.kinds import codec, validate
from windlass.kinds.types import core, meta, queue
from windlass.kinds.types import run as run_kind
from windlass.sdk import watching
from windlass.sdk.admin import queues, tokens
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

Role = Literal["admin", "member", "viewer"]
Action = Literal["created", "changed", "unchanged"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

LABEL: Final = "windlass.dev/team"
"""Label of the namespace and the queue of a team: its name."""
_POD_SECURITY: Final = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Pods of a team have no access to their node: no host paths, host network or privileges."""
_RESERVED: Final = ("default", "windlass-system")
_RBAC: Final = "rbac.authorization.k8s.io"
_NAME: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
TIMEOUT: Final = 90.0
"""Seconds that the deletion of a team waits until its namespace is gone."""
QUOTA: Final = "windlass-team"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One object of the team, and what was done with it."""

    what: str
    action: Action
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Team:
    """The present state of a team. People are empty if the caller may not read bindings."""

    name: str
    queue: queue.Queue
    people: dict[Role, list[str]]
    readable: bool
    """Whether the caller may read its members."""

    def to_dict(self) -> dict[str, Any]:
        value = codec.to_dict(self.queue)
        queue = {"spec": value.get("spec") or {}, "status": value.get("status") or {}}
        people = {f"{role}s": self.people[role] for role in ROLES} if self.readable else {}
        return {"name": self.name, "queue": queue, **people}


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted state of a team; absent fields stay unchanged."""

    queue: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the queue's spec."""
    people: Mapping[Role, Sequence[str]] = dataclasses.field(default_factory=dict)
    remove: Sequence[str] = ()
    """Users to remove, with any role."""
    quota: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The ResourceQuota of the namespace, on engines that have ResourceQuotas."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What the deletion of a team deletes."""

    runs: list[str]
    """Names of unfinished runs."""
    records: int
    """Number of ended runs."""
    secrets: int
    children: list[str]
    """Queues below its queue."""
    tokens: list[dict[str, Any]]
    """Tokens of users who are in no other team."""


Teams = list[Team]
Steps = list[Step]
Subjects = list[core.Subject]


class AsyncTeams:
    """`client.teams`: everything about teams, on any engine."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._tokens = tokens.AsyncTokens(store)

    async def list(self) -> Teams:
        """All teams, by name; with their members if the caller may read them."""
        found = await self._store.list(queue.Queue, label_selector=LABEL)
        return [await self._team(_team_of(each), each) for each in found.items]

    async def get(self, name: str) -> Team:
        """One team; NotFound if it does not exist."""
        try:
            found = await self._store.get(queue.Queue, name)
        except errors.NotFound:
            found = None
        if found is None or _team_of(found) != name:
            raise errors.NotFound(
                f'teams "{name}" not found', details={"kind": "teams", "name": name}
            )
        return await self._team(name, found)

    async def create(
        self, name: str, *, members: Sequence[str] = (), viewers: Sequence[str] = (),
        admins: Sequence[str] = (), **queue: Any,
    ) -> Steps:  # fmt: skip
        """Creates or changes the team; `queue` are fields of its queue's spec, as written there:
        `guarantee={"gpu": 16}, minRuntime="10m"`."""
        people: dict[Role, Sequence[str]] = {
            "admin": admins, "member": members, "viewer": viewers,
        }  # fmt: skip
        return await self.ensure(name, Wanted(queue, people))

    async def ensure(self, name: str, wanted: Wanted, *, must_exist: bool = False) -> Steps:
        """Brings the team to the wanted state, and returns the steps."""
        _refuse_bad(name, wanted)
        if must_exist:
            await self.get(name)
        await self._refuse_without_roles()
        if wanted.queue.get("parent"):
            await self._store.get(queue.Queue, str(wanted.queue["parent"]))
        if wanted.quota:
            await self._refuse_without_quotas(name)
        steps = [await self._queue(name, wanted), await self._namespace(name)]
        steps += await self._people(name, wanted)
        if wanted.quota:
            steps.append(await self._quota(name, wanted.quota))
        return steps

    async def ending(self, name: str) -> Ending:
        """What a deletion of the team deletes."""
        team = await self.get(name)
        runs = (await self._store.list(run_kind.Run, name)).items
        live = sorted(each.name for each in runs if not each.finished)
        secrets = len((await self._store.list(core.Secret, name)).items)
        all_queues = (await self._store.list(queue.Queue)).items
        return Ending(
            live, len(runs) - len(live), secrets,
            sorted(each.name for each in all_queues if each.spec.parent == name),
            await self._only_here(team),
        )  # fmt: skip

    async def delete(self, name: str, *, stop_runs: bool = False) -> Ending:
        """Deletes a team and everything in it; Conflict if it has unfinished runs, unless
        `stop_runs`."""
        found = await self.ending(name)
        if found.children:
            raise errors.Conflict(
                f"the queue of team {name} has queues below it: {', '.join(found.children)}; set "
                "another parent for them first (windlass queue set NAME --parent QUEUE)"
            )
        if found.runs and not stop_runs:
            some, more = ", ".join(found.runs[:5]), len(found.runs) - 5
            raise errors.Conflict(
                f"team {name} has {len(found.runs)} runs that have not ended: {some}"
                + (f" and {more} more" if more > 0 else "")
                + "; stop them first, or use --stop-runs"
            )
        await self._delete_namespace(name)
        await _gone(self._store.delete(queue.Queue, name))
        for each in found.tokens:
            await _gone(self._tokens.revoke(each["id"]))
        return found

    # --- the parts of a team

    async def _queue(self, name: str, wanted: Wanted) -> Step:
        spec = {key: value for key, value in wanted.queue.items() if value is not None}
        try:
            known = await self._store.get(queue.Queue, name)
        except errors.NotFound:
            made = {
                "metadata": {"name": name, "labels": {LABEL: name}},
                "spec": {"namespaces": [name], **spec},
            }
            await self._store.create(codec.from_dict(queue.Queue, made))
            return Step(f"queue/{name}", "created")
        value = codec.to_dict(known)
        homes = known.spec.namespaces or []
        patch = _differing(value.get("spec") or {}, spec)
        if name not in homes and "namespaces" not in spec:
            patch["namespaces"] = [*homes, name]
        labels = {} if _team_of(known) == name else {LABEL: name}
        if not patch and not labels:
            return Step(f"queue/{name}", "unchanged")
        change: dict[str, Any] = {"spec": patch}
        if labels:
            change["metadata"] = {"labels": labels}
        await self._store.patch(queue.Queue, name, patch=change)
        return Step(f"queue/{name}", "changed", ", ".join(sorted(patch)))

    async def _namespace(self, name: str) -> Step:
        labels = {LABEL: name, **_POD_SECURITY}
        try:
            known = await self._store.get(core.Namespace, name)
        except errors.NotFound:
            metadata = meta.ObjectMeta(name=name, labels=labels)
            await self._store.create(core.Namespace(metadata=metadata))
            return Step(f"namespace/{name}", "created")
        if known.metadata.deletion_timestamp:
            raise errors.Conflict(f"the namespace {name} is terminating; try again when it is gone")
        have = known.metadata.labels or {}
        # An existing label (a stricter pod security) stays.
        missing = {key: value for key, value in labels.items() if key not in have}
        if not missing:
            return Step(f"namespace/{name}", "unchanged")
        await self._store.patch(core.Namespace, name, patch={"metadata": {"labels": missing}})
        return Step(f"namespace/{name}", "changed", "labels")

    async def _people(self, name: str, wanted: Wanted) -> Steps:
        steps = []
        for role in ROLES:
            add = [subject(each) for each in wanted.people.get(role, ())]
            drop = {_word(subject(each)) for each in wanted.remove}
            step = await self._bind(name, role, add, drop)
            if step is not None:
                steps.append(step)
        return steps

    async def _bind(self, name: str, role: Role, add: Subjects, drop: set[str]) -> Step | None:
        """Brings one RoleBinding to these subjects; None if it neither exists nor is wanted."""
        binding, what = f"windlass-{role}s", f"rolebinding/windlass-{role}s"
        try:
            known = await self._store.get(core.RoleBinding, binding, name)
        except errors.NotFound:
            if not add:
                return None
            made = core.RoleBinding(
                metadata=meta.ObjectMeta(name=binding, namespace=name),
                role_ref=core.RoleRef(kind="ClusterRole", name=f"windlass-{role}"),
                subjects=_unique(add),
            )
            await self._store.create(made)
            return Step(what, "created", _listed(add))
        have = known.subjects or []
        stay = [each for each in _unique([*have, *add]) if _word(each) not in drop]
        if [_word(each) for each in stay] == [_word(each) for each in have]:
            return Step(what, "unchanged", _listed(stay)) if add else None
        patch = {
            "metadata": {"resourceVersion": known.metadata.resource_version},
            "subjects": [_subject_dict(each) for each in stay],
        }
        await self._store.patch(core.RoleBinding, binding, name, patch=patch)
        return Step(what, "changed", _listed(stay))

    async def _quota(self, name: str, hard: Mapping[str, str]) -> Step:
        path = f"/api/v1/namespaces/{name}/resourcequotas"
        what = f"resourcequota/{QUOTA}"
        body = {
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": QUOTA, "labels": {LABEL: name}}, "spec": {"hard": dict(hard)},
        }  # fmt: skip
        status, answer = await tokens.ask(self._store, "GET", f"{path}/{QUOTA}")
        if status == 200:
            if (answer.get("spec") or {}).get("hard") == dict(hard):
                return Step(what, "unchanged")
            body["metadata"] = answer["metadata"]
            status, answer = await tokens.ask(self._store, "PUT", f"{path}/{QUOTA}", body)
            action: Action = "changed"
        else:
            status, answer = await tokens.ask(self._store, "POST", path, body)
            action = "created"
        if status >= 300:
            raise errors.from_status(answer, status)
        return Step(what, action)

    # --- looking

    async def _team(self, name: str, found: queue.Queue) -> Team:
        people: dict[Role, list[str]] = {role: [] for role in ROLES}
        try:
            bindings = (await self._store.list(core.RoleBinding, name)).items
        except errors.Forbidden:
            return Team(name, found, people, False)
        for each in bindings:
            role = each.role_ref.name.removeprefix("windlass-")
            if role in people:
                people[role] += [_word(one) for one in each.subjects or ()]
        return Team(name, found, {role: sorted(set(who)) for role, who in people.items()}, True)

    async def _only_here(self, team: Team) -> tokens.Tokens:
        """Tokens of users without a role elsewhere."""
        users = {who for listed in team.people.values() for who in listed}
        for each in (await self._store.list(core.RoleBinding)).items:
            if each.namespace != team.name:
                users -= {_word(one) for one in each.subjects or ()}
        for everywhere in (await self._store.list(core.ClusterRoleBinding)).items:
            users -= {_word(one) for one in everywhere.subjects or ()}
        found = await self._tokens.list_or_none() or []
        return [each for each in found if each["user"] in users and not each["groups"]]

    async def _refuse_without_roles(self) -> None:
        """Raises if the roles are missing: RBAC accepts a binding to a missing role, without
        effect."""
        path = f"/apis/{_RBAC}/v1/clusterroles/windlass-member"
        status, answer = await tokens.ask(self._store, "GET", path)
        if status == 404 and (answer.get("details") or {}).get("name"):
            raise errors.NotFound(
                "this cluster has no role windlass-member; install Windlass there first with "
                "`windlass install`"
            )

    async def _refuse_without_quotas(self, name: str) -> None:
        path = f"/api/v1/namespaces/{name}/resourcequotas"
        if (await tokens.ask(self._store, "GET", path))[0] == 404:
            raise errors.BadRequest(
                "this engine has no ResourceQuotas; limit the runs with --limit of the queue"
            )

    async def _delete_namespace(self, name: str) -> None:
        """Returns when the namespace and everything in it are gone."""
        try:
            await self._store.delete(core.Namespace, name)
        except errors.NotFound:
            return
        chosen = f"metadata.name={name}"
        start = await self._store.list(core.Namespace, field_selector=chosen)
        if not start.items:
            return
        stream = watching.changes(self._store, core.Namespace, field_selector=chosen, start=start)
        try:
            async with asyncio.timeout(TIMEOUT), contextlib.aclosing(stream) as changes:
                async for change, _ in changes:
                    if change == "DELETED":
                        return
        except TimeoutError:
            raise errors.ServerTimeout(
                f"the namespace {name} is still terminating: {await self._why(name)}; "
                "repeat the command to wait again"
            ) from None

    async def _why(self, name: str) -> str:
        """Why a namespace is still terminating, from the messages of its conditions."""
        _, answer = await tokens.ask(self._store, "GET", f"/api/v1/namespaces/{name}")
        conditions = (answer.get("status") or {}).get("conditions") or ()
        messages = [str(each.get("message")) for each in conditions if each.get("status") == "True"]
        return " ".join(messages)[:500] or "its runs are still stopping"


def _refuse_bad(name: str, wanted: Wanted) -> None:
    """Validates what needs no server, before anything is done."""
    _check_name(name)
    for word in (*wanted.remove, *(each for listed in wanted.people.values() for each in listed)):
        subject(word)
    value = {"metadata": {"name": name}, "spec": {k: v for k, v in wanted.queue.items() if v}}
    head = {"apiVersion": queue.Queue.resource.api_version, "kind": "Queue"}
    faults = validate.validate(queue.Queue, validate.defaulted(queue.Queue, head | value))
    if faults:
        causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
        raise errors.Invalid("the queue of the team is not valid", causes=causes)


def _check_name(name: str) -> None:
    """Validates a team's name, which names a namespace and a queue; names of the platform are
    reserved."""
    if name in _RESERVED or name.startswith("kube-"):
        raise errors.BadRequest(
            f"{name!r} is reserved for the platform; choose another name for the team"
        )
    if not _NAME.fullmatch(name):
        raise errors.BadRequest(
            f"{name!r} is not a team name; use lower-case letters, digits and dashes, at most "
            "63, such as support"
        )


def subject(word: str) -> core.Subject:
    """`alice`, `group:ml`, `account:ci` (a service account of the team) or
    `account:NAMESPACE/ci`."""
    kind, colon, name = word.partition(":")
    if not colon or kind not in ("group", "account"):
        kind, name = "user", word
    if not name or not name.isprintable() or "," in name or len(name) > 200:
        raise errors.BadRequest(
            f"{word!r} is not a valid subject; write a user name, group:NAME or account:NAME"
        )
    if kind == "account":
        namespace, _, account = name.rpartition("/")
        return core.Subject(kind="ServiceAccount", name=account, namespace=namespace)
    return core.Subject(kind=kind.capitalize(), name=name, api_group=_RBAC)


def users_of(people: Mapping[Role, Sequence[str]]) -> list[str]:
    """The subjects that are users, and so can have tokens."""
    named = [subject(each) for listed in people.values() for each in listed]
    return sorted({each.name for each in named if each.kind == "User"})


def _team_of(found: queue.Queue) -> str:
    return (found.metadata.labels or {}).get(LABEL, "")


def _word(each: core.Subject) -> str:
    if each.kind == "User":
        return each.name
    if each.kind == "Group":
        return f"group:{each.name}"
    return f"account:{each.namespace}/{each.name}" if each.namespace else f"account:{each.name}"


def _subject_dict(each: core.Subject) -> dict[str, str]:
    value = {"kind": each.kind, "name": each.name}
    if each.kind == "ServiceAccount":
        return value | {"namespace": each.namespace}
    return value | {"apiGroup": each.api_group or _RBAC}


def _unique(subjects: Iterable[core.Subject]) -> list[core.Subject]:
    return list({_word(each): each for each in subjects}.values())


def _listed(subjects: Iterable[core.Subject]) -> str:
    return ", ".join(_word(each) for each in subjects)


def _differing(have: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch for fields of a spec; a mapping is replaced as a whole."""
    patch: dict[str, Any] = {}
    for key, value in wanted.items():
        old = have.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            # `gpu: 16` in a file and gpu=16 in a command are equal.
            if {k: str(v) for k, v in value.items()} != {k: str(v) for k, v in old.items()}:
                patch[key] = queues.replacing(old, value)
        elif old != value:
            patch[key] = value
    return patch


async def _gone(deleting: Any) -> None:
    """Deletes an object; no error if it does not exist."""
    try:
        await deleting
    except errors.NotFound:
        return
