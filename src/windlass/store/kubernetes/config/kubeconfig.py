"""Reads kubeconfig files the way kubectl does, and adds a context to one without losing the rest.

Called by `store.connect` to choose a server and by `windlass up` to make itself known to kubectl.
Never contacts a server and never runs a credential plug-in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from windlass.store.kubernetes.config import model
from windlass.store.kubernetes.config.model import Access, Cluster, KubeconfigError, User

_LOCK_TRIES = 20
_LOCK_WAIT = 0.1


class Context(msgspec.Struct, rename="kebab", frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


@dataclasses.dataclass(slots=True)
class Kubeconfig:
    """Several files merged: of entries with the same name, the first file's counts."""

    source: str
    clusters: dict[str, Cluster] = dataclasses.field(default_factory=dict)
    users: dict[str, User] = dataclasses.field(default_factory=dict)
    contexts: dict[str, Context] = dataclasses.field(default_factory=dict)
    current_context: str = ""


def load(paths: Sequence[pathlib.Path], *, must_exist: bool = False) -> Kubeconfig:
    """The merged content of `paths`; missing files are skipped unless `must_exist`."""
    present = [path for path in paths if is_there(path)]
    if not present and must_exist:
        names = ", ".join(str(path) for path in paths)
        raise KubeconfigError(
            f"kubeconfig {names} does not exist; give an existing file with --kubeconfig or "
            f"in KUBECONFIG"
        )
    merged = Kubeconfig(source=os.pathsep.join(str(path) for path in present))
    for path in present:
        _add_file(merged, path)
    return merged


def is_there(path: pathlib.Path) -> bool:
    """Whether the file exists. True if the folder is not readable: reading then reports the
    error."""
    try:
        return path.exists()
    except PermissionError:
        return True


def split_list(value: str) -> list[pathlib.Path]:
    """The files that the variable KUBECONFIG names."""
    return [pathlib.Path(part).expanduser() for part in value.split(os.pathsep) if part]


def select(config: Kubeconfig, context: str | None = None) -> Access:
    """The access that a context (or the current one) describes."""
    name = context or config.current_context
    known = ", ".join(sorted(config.contexts)) or "none"
    if not name:
        raise KubeconfigError(
            f"{config.source} has no current-context; choose one with --context (it has: {known})"
        )
    chosen = config.contexts.get(name)
    if chosen is None:
        raise KubeconfigError(
            f'context "{name}" is not in {config.source}; choose one with --context '
            f"(it has: {known})"
        )
    cluster = config.clusters.get(chosen.cluster)
    if cluster is None or not cluster.server:
        raise KubeconfigError(
            f'context "{name}" in {config.source} names the cluster "{chosen.cluster}", which '
            f"has no server there; set it with `kubectl config set-cluster`"
        )
    user = config.users.get(chosen.user) if chosen.user else User()
    if user is None:
        raise KubeconfigError(
            f'context "{name}" in {config.source} names the user "{chosen.user}", which is not '
            f"there; add it with `kubectl config set-credentials`"
        )
    _refuse_unusable(cluster, user, chosen, config.source)
    return Access(
        cluster=cluster,
        user=user,
        namespace=chosen.namespace or "default",
        context=name,
        source=config.source,
    )


def merge_context(
    path: pathlib.Path,
    name: str,
    cluster: dict[str, Any],
    user: dict[str, Any],
    *,
    namespace: str = "",
    make_current: bool = False,
) -> None:
    """Adds or replaces the context `name` and its cluster and user in the file at `path`.

    `cluster` and `user` are written as kubeconfig writes them (`server`, `token`, ...). Everything
    else in the file stays, with comments and order; a new one is written as JSON, which every
    reader of YAML reads and our commands read quickly. The file is replaced atomically and
    readable by its owner only, because it holds credentials. It becomes the current context if
    asked for, or if there is none.
    """
    path = path.expanduser().resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        old = path.read_text() if path.exists() else ""
        content = _read_yaml(path) if path.exists() else {}
        scalars = {"apiVersion": "v1", "kind": "Config"}
        scalars = {key: value for key, value in scalars.items() if key not in content}
        context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
        if make_current or not content.get("current-context"):
            scalars["current-context"] = name
        content |= scalars
        entries = {
            "clusters": {"name": name, "cluster": cluster},
            "users": {"name": name, "user": user},
            "contexts": {"name": name, "context": context},
        }
        for section, entry in entries.items():
            _put_entry(content, section, entry, path)
        if not old or old.startswith("{"):
            _write_atomically(path, _dump_json(content))
        else:
            _write_atomically(path, _edited(old, entries, scalars, content, path).encode())


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster = Cluster()


class _NamedUser(msgspec.Struct):
    name: str
    user: User = User()


class _NamedContext(msgspec.Struct):
    name: str
    context: Context = Context()


class _File(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


def _add_file(merged: Kubeconfig, path: pathlib.Path) -> None:
    try:
        content = msgspec.convert(_without_nulls(_read_yaml(path)), _File)
    except msgspec.ValidationError as error:
        raise KubeconfigError(f"{path} is not a valid kubeconfig: {error}") from None
    folder = path.absolute().parent
    for cluster in content.clusters:
        merged.clusters.setdefault(cluster.name, _anchor_cluster(cluster.cluster, folder))
    for user in content.users:
        merged.users.setdefault(user.name, _anchor_user(user.user, folder))
    for context in content.contexts:
        merged.contexts.setdefault(context.name, context.context)
    merged.current_context = merged.current_context or content.current_context


def _read_yaml(path: pathlib.Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise KubeconfigError(
            f"cannot read kubeconfig {path}: {error.strerror}; ask the administrator of that "
            "engine for a token of your own, or choose another file with --kubeconfig"
        ) from None
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {error}") from None
    if text.startswith("{"):
        # JSON is valid YAML and needs no YAML parser: `windlass up` writes JSON.
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=dict[str, Any])
    import yaml

    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise KubeconfigError(f"kubeconfig {path} is not a mapping; expected clusters and contexts")
    return content


def _without_nulls(value: Any) -> Any:
    """kubectl writes empty sections as null; a null means the same as an absent field."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _anchor_cluster(cluster: Cluster, folder: pathlib.Path) -> Cluster:
    path = _anchored(cluster.certificate_authority, folder)
    return msgspec.structs.replace(cluster, certificate_authority=path)


def _anchor_user(user: User, folder: pathlib.Path) -> User:
    plugin = user.exec
    if plugin is not None and os.sep in plugin.command:
        plugin = msgspec.structs.replace(plugin, command=_anchored(plugin.command, folder))
    return msgspec.structs.replace(
        user,
        client_certificate=_anchored(user.client_certificate, folder),
        client_key=_anchored(user.client_key, folder),
        token_file=_anchored(user.token_file, folder),
        exec=plugin,
    )


def _anchored(path: str, folder: pathlib.Path) -> str:
    """Paths in a kubeconfig are relative to the folder of the file."""
    return str(folder / path) if path else ""


def _refuse_unusable(cluster: Cluster, user: User, context: Context, source: str) -> None:
    if not cluster.server.startswith(("https://", "http://")):
        raise KubeconfigError(
            f'cluster "{context.cluster}" in {source} has the server "{cluster.server}"; '
            f"it must begin with https:// or http://"
        )
    has_authority = cluster.certificate_authority or cluster.certificate_authority_data
    if cluster.insecure_skip_tls_verify and has_authority:
        raise KubeconfigError(
            f'cluster "{context.cluster}" in {source} sets both certificate-authority and '
            f"insecure-skip-tls-verify; remove one of them"
        )
    if cluster.proxy_url and not cluster.proxy_url.startswith(("http://", "https://")):
        raise KubeconfigError(
            f'cluster "{context.cluster}" in {source} has the proxy-url "{cluster.proxy_url}"; '
            f"only http:// and https:// proxies are supported"
        )
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    if has_certificate != bool(user.client_key or user.client_key_data):
        raise KubeconfigError(
            f'user "{context.user}" in {source} needs both client-certificate and client-key; '
            f"one is missing"
        )
    if user.auth_provider is not None:
        raise KubeconfigError(
            f'user "{context.user}" in {source} uses auth-provider, which Kubernetes has removed; '
            f"use an exec plug-in of your provider instead"
        )
    if (user.impersonate_groups or user.impersonate_uid or user.impersonate_extra) and (
        not user.impersonate
    ):
        raise KubeconfigError(
            f'user "{context.user}" in {source} impersonates groups without a user; set `as` too'
        )
    model.pem(cluster.certificate_authority_data, "", "certificate-authority", source)


def _put_entry(content: dict[str, Any], section: str, entry: dict[str, Any], path: Any) -> None:
    entries = content.get(section) or []
    if not isinstance(entries, list):
        raise KubeconfigError(f"{section} in {path} is not a list; nothing was changed")
    names = [each.get("name") if isinstance(each, dict) else None for each in entries]
    at = names.index(entry["name"]) if entry["name"] in names else len(entries)
    content[section] = [*entries[:at], entry, *entries[at + 1 :]]


def _edited(
    old: str,
    entries: dict[str, dict[str, Any]],
    scalars: dict[str, str],
    content: dict[str, Any],
    path: pathlib.Path,
) -> str:
    """The text of the file with its new entries; raises if they cannot be added to this text."""
    import yaml

    from windlass.store.kubernetes.config import yaml_edit

    try:
        text = yaml_edit.put(old, entries, scalars)
        if yaml.safe_load(text) == content:
            return text
    except yaml.YAMLError:
        pass
    raise KubeconfigError(
        f"context {entries['contexts']['name']} cannot be added to {path} without rewriting the "
        "file; nothing was changed: choose another file"
    )


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """kubectl's lock file, so that concurrent writes of kubectl and Windlass are not lost."""
    lock = path.with_name(path.name + ".lock")
    for _ in range(_LOCK_TRIES):
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            time.sleep(_LOCK_WAIT)
    else:
        raise KubeconfigError(
            f"{path} is being changed by another program; if none is, remove {lock} and try again"
        )
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _dump_json(content: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _write_atomically(path: pathlib.Path, text: bytes) -> None:
    import tempfile

    # mkstemp makes the file readable by its owner only.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
