"""Function calls and their results, exchanged through a mailbox on the server.

Calls are pickled with cloudpickle. A result is unpickled only if it comes from a mailbox that this
client created, whose token only the client's own pods have.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from windlass.kinds import array_results
from windlass.kinds.array_results import IndexResult
from windlass.kinds.types import core, run
from windlass.kinds.types.meta import ObjectMeta
from windlass.sdk import platform_api
from windlass.sdk.errors import CannotShip, RemoteError, RemoteTraceback, RunFailed
from windlass.sdk.run_options import Options
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config import model as accesses

ANNOTATION = "windlass.dev/calls"
"""Annotation of a Run that calls a function: the name of the mailbox that receives its result."""

_LAUNCH = """\
import os,ssl,sys,time,urllib.request as u
e=os.environ
h={"Authorization":"Bearer "+e["WINDLASS_CALLS_TOKEN"]}
r=u.Request(e["WINDLASS_CALLS_URL"]+"/worker/calls/bootstrap",headers=h)
c=ssl.create_default_context(cadata=e.get("WINDLASS_CALLS_CA") or None)
c.verify_flags&=~ssl.VERIFY_X509_STRICT
for n in range(60):
    try:
        d=u.urlopen(r,context=c).read();break
    except u.HTTPError:raise
    except OSError:time.sleep(min(2,.05*2**n))
else:sys.exit("the server of this worker cannot be reached")
f=os.memfd_create("windlass")
with open(f,"wb",closefd=False) as w:w.write(d)
sys.path.append(f"/proc/self/fd/{f}")
import windlass_worker as w
sys.exit(w.main(w.from_environment()))
"""


class Mailbox:
    """The client's side of a mailbox."""

    def __init__(
        self,
        store: KubernetesStore,
        namespace: str,
        name: str,
        made: Mapping[str, str] | None = None,
    ) -> None:
        """`made`: the server's answer to the creation, if this client has just created it."""
        self._made = made or {}
        self._store = store
        self.namespace = namespace
        self.name = name
        self._path = f"{platform_api.PATH}/namespaces/{namespace}/mailboxes/{name}"

    @classmethod
    async def create(cls, store: KubernetesStore, namespace: str) -> Mailbox:
        path = f"{platform_api.PATH}/namespaces/{namespace}/mailboxes"
        status, _, body = await store.raw("POST", path)
        answer = platform_api.json_object(body)
        if status >= 300:
            if status == 404 and answer.get("reason") == "NotFound":
                raise errors.NotFound(
                    "this server does not run functions; submit a command, or use `windlass up`"
                )
            raise errors.from_status(answer, status)
        box = cls(store, namespace, answer["name"], answer)
        await box.put("bootstrap", bootstrap())
        return box

    async def put(self, key: str, call: bytes) -> None:
        await self._ask("PUT", f"/calls/{key}", call)

    async def beat(self, number: int) -> None:
        """A heartbeat to the workers: they end if the number stays the same."""
        await self._ask("PUT", "/calls/heartbeat", str(number).encode())

    async def forget(self, key: str) -> None:
        await self._ask("DELETE", f"/calls/{key}")

    async def result(self, key: str) -> bytes | None:
        try:
            return await self._ask("GET", f"/results/{key}")
        except errors.NotFound:
            return None

    async def events(self, epoch: str, after: int) -> dict[str, Any]:
        query = [("epoch", epoch), ("after", str(after)), ("wait", "true")]
        return platform_api.json_object(await self._ask("GET", "/events", query=query))

    async def delete(self) -> None:
        await self._ask("DELETE", "")

    def secret(self, name: str) -> core.Secret:
        """The Secret with which a pod reaches its side of the mailbox."""
        server, authority = self._made.get("server", ""), self._made.get("authority", "")
        if not server:
            server, authority = self._own_access()
        content = {
            "WINDLASS_CALLS_URL": server + self._path,
            "WINDLASS_CALLS_TOKEN": self._made["token"],
            "WINDLASS_CALLS_CA": authority,
        }
        return core.Secret(
            metadata=ObjectMeta(name=name, namespace=self.namespace),
            string_data=content,
        )

    def _own_access(self) -> tuple[str, str]:
        """The address and the certificate authority that this client uses."""
        access = self._store.access
        cluster = access.cluster
        authority = accesses.pem(
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            "certificate-authority",
            access.source,
        )
        return access.address, (authority or b"").decode()

    def command(self, options: Options) -> list[str]:
        """The command of its workers."""
        return command(options, self._made.get("python", ""))

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        status, _, answer = await self._store.raw(
            method, self._path + path, body=body, content_type="application/octet-stream",
            query=query,
        )  # fmt: skip
        if status >= 300:
            raise errors.from_status(platform_api.json_object(answer), status)
        return answer


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call as bytes; CannotShip if a part of it cannot be pickled."""
    import cloudpickle

    try:
        return cast(bytes, cloudpickle.dumps((function, tuple(args), dict(kwargs))))
    except Exception as problem:
        name = getattr(function, "__qualname__", repr(function))
        raise CannotShip(
            f"{name} and its arguments cannot be sent to a worker ({problem}); create open "
            "files, locks and connections inside the function"
        ) from problem


def unpack(result: bytes) -> Any:
    """The return value, or raises the function's exception with its traceback as the cause."""
    letter, content = result[:1], result[1:]
    if letter == b"R":
        return pickle.loads(content)  # noqa: S301 (from a pod of ours; see the module)
    packed, kind, message, text = pickle.loads(content)  # noqa: S301
    error: BaseException | None = None
    if packed is not None:
        try:
            error = pickle.loads(packed)  # noqa: S301
        except Exception:  # its class is missing here, or its constructor needs more arguments
            error = None
    if not isinstance(error, BaseException):
        error = RemoteError(kind, message)
    error.__cause__ = RemoteTraceback(text)
    raise error


@functools.cache
def bootstrap() -> bytes:
    """The worker and cloudpickle as one zip file: a pod needs only Python."""
    import cloudpickle

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(Path(__file__).parents[1] / "executor" / "worker.py", "windlass_worker.py")
        folder = Path(cloudpickle.__file__).parent
        for path in sorted(folder.glob("*.py")):
            archive.write(path, f"cloudpickle/{path.name}")
    return packed.getvalue()


def command(options: Options, there: str = "") -> list[str]:
    """The command of a worker: this Python, unless the options choose another, or `there` names the
    Python of pods that do not use this machine's files."""
    own = options.get("python") or options.get("requirements") or options.get("image")
    return ["python" if own else there or sys.executable, "-c", _LAUNCH]


def name_for(of: run.Run) -> str:
    """The mailbox of a run that calls a function; empty for a run of a command."""
    return (of.metadata.annotations or {}).get(ANNOTATION, "")


async def results(store: KubernetesStore, ended: run.Run) -> Any:
    """The return value of the function that an ended run called; a list by rank if the run has
    several replicas. Raises the exception of the first replica whose call failed."""
    members = ended.spec.roles[0].replicas
    keys = [str(rank) for rank in range(members)]
    return await _values(store, ended, keys, RunFailed(ended), ended.status.phase)


async def results_of_index(store: KubernetesStore, array: run.Run, ended: IndexResult) -> Any:
    """The same of one index of an array."""
    keys = [f"{ended.index}-{rank}" for rank in range(array.spec.roles[0].replicas)]
    return await _values(store, array, keys, RunFailed(array, ended), ended.phase)


async def results_of_array(store: KubernetesStore, array: run.Run) -> list[Any]:
    """The return values by index, ascending. Raises the exception of the first index that
    failed."""
    return [await results_of_index(store, array, each) for each in array_results.results(array)]


async def _values(
    store: KubernetesStore, owner: run.Run, keys: Sequence[str], failure: RunFailed, phase: str
) -> Any:
    box = Mailbox(store, owner.namespace, name_for(owner))
    found = [await box.result(key) for key in keys]
    for result in found:
        if result is not None and result[:1] == b"E":
            unpack(result)
    if phase != "Succeeded" or None in found:
        raise failure
    values = [unpack(result) for result in found if result is not None]
    return values[0] if len(keys) == 1 else values
