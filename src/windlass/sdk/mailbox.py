"""Functions as work: packed with cloudpickle, sent through a mailbox of the server, results back.

`run(function)` is one Run whose members each call the function once; `executor` keeps workers that
take call after call. Results are unpickled only if they came out of a mailbox that we made and
whose token only our pods have.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windlass.kinds import kubernetes, run
from windlass.kinds.meta import ObjectMeta
from windlass.sdk import failures, handles, runs
from windlass.sdk.handles import AsyncRunHandle
from windlass.sdk.options import Options
from windlass.store import errors
from windlass.store.kubernetes import access as accesses
from windlass.store.kubernetes.client import KubernetesStore

if TYPE_CHECKING:
    from windlass.sdk.aio import AsyncClient

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
    """The owner's side of a mailbox."""

    def __init__(
        self,
        store: KubernetesStore,
        namespace: str,
        name: str,
        made: Mapping[str, str] | None = None,
    ) -> None:
        """`made`: what the server said when it was made, if it was just now."""
        self._made = made or {}
        self._store = store
        self.namespace = namespace
        self.name = name
        self._path = f"{handles.PLATFORM}/namespaces/{namespace}/mailboxes/{name}"

    @classmethod
    async def create(cls, store: KubernetesStore, namespace: str) -> Mailbox:
        path = f"{handles.PLATFORM}/namespaces/{namespace}/mailboxes"
        status, _, body = await store.raw("POST", path)
        answer = handles.json_of(body)
        if status >= 300:
            if status == 404 and answer.get("reason") == "NotFound":
                raise errors.NotFound(
                    "this server does not carry functions; hand in a command, or use `windlass up`"
                )
            raise errors.from_status(answer, status)
        box = cls(store, namespace, answer["name"], answer)
        await box.put("bootstrap", bootstrap())
        return box

    async def put(self, key: str, call: bytes) -> None:
        await self._ask("PUT", f"/calls/{key}", call)

    async def forget(self, key: str) -> None:
        await self._ask("DELETE", f"/calls/{key}")

    async def result(self, key: str) -> bytes | None:
        try:
            return await self._ask("GET", f"/results/{key}")
        except errors.NotFound:
            return None

    async def events(self, epoch: str, after: int) -> dict[str, Any]:
        query = [("epoch", epoch), ("after", str(after)), ("wait", "true")]
        return handles.json_of(await self._ask("GET", "/events", query=query))

    async def delete(self) -> None:
        await self._ask("DELETE", "")

    def secret(self, name: str) -> kubernetes.Secret:
        """What a pod needs to reach its side of the mailbox."""
        server, authority = self._made.get("server", ""), self._made.get("authority", "")
        if not server:
            server, authority = self._as_we_do()
        content = {
            "WINDLASS_CALLS_URL": server + self._path,
            "WINDLASS_CALLS_TOKEN": self._made["token"],
            "WINDLASS_CALLS_CA": authority,
        }
        return kubernetes.Secret(
            metadata=ObjectMeta(name=name, namespace=self.namespace),
            string_data=content,
        )

    def _as_we_do(self) -> tuple[str, str]:
        """Where we reach the server, and the authority that we trust."""
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
        """How its workers are started."""
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
            raise errors.from_status(handles.json_of(answer), status)
        return answer


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call as bytes; CannotShip if something in it cannot leave this process."""
    import cloudpickle

    try:
        return cast(bytes, cloudpickle.dumps((function, tuple(args), dict(kwargs))))
    except Exception as problem:
        name = getattr(function, "__qualname__", repr(function))
        raise failures.CannotShip(
            f"{name} and its arguments cannot be sent to a worker ({problem}); what is open or "
            "running (files, locks, connections) must be made inside the function"
        ) from problem


def unpack(result: bytes) -> Any:
    """The value, or raises what the function raised, with the traceback there as its cause."""
    letter, content = result[:1], result[1:]
    if letter == b"R":
        return pickle.loads(content)  # noqa: S301 (from a pod of ours; see the module)
    packed, kind, words, text = pickle.loads(content)  # noqa: S301
    error: BaseException | None = None
    if packed is not None:
        try:
            error = pickle.loads(packed)  # noqa: S301
        except Exception:  # its class is not here, or its constructor wants more
            error = None
    if not isinstance(error, BaseException):
        error = failures.RemoteError(kind, words)
    error.__cause__ = failures.RemoteTraceback(text)
    raise error


@functools.cache
def bootstrap() -> bytes:
    """The worker and cloudpickle as one zip file: a pod needs Python and nothing else."""
    import cloudpickle

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(Path(__file__).with_name("worker.py"), "windlass_worker.py")
        folder = Path(cloudpickle.__file__).parent
        for path in sorted(folder.glob("*.py")):
            archive.write(path, f"cloudpickle/{path.name}")
    return packed.getvalue()


def command(options: Options, there: str = "") -> list[str]:
    """How a worker is started: with this very Python, unless the options name another, or pods do
    not run on this machine's files and have one of their own."""
    own = options.get("python") or options.get("requirements") or options.get("image")
    return ["python" if own else there or sys.executable, "-c", _LAUNCH]


async def submit(
    client: AsyncClient, function: Callable[..., Any], args: Sequence[Any], options: Options
) -> AsyncRunHandle:
    """A run whose members each call the function once."""
    packed = pack(function, args, {})
    name = options.get("name") or runs.name_for([getattr(function, "__name__", "function")])
    box = await Mailbox.create(client.store, client.namespace)
    try:
        await box.put("function", packed)
        secret = await client.store.create(box.secret(f"{name}-calls"))
        words = cast(Options, dict(options))
        words["name"] = name
        words["secrets"] = [*options.get("secrets", ()), secret.name]
        words["env"] = {**options.get("env", {}), "WINDLASS_CALLS_MODE": "run"}
        words["annotations"] = {**options.get("annotations", {}), handles.CALLS: box.name}
        try:
            made = await client.runs.submit(box.command(options), **words)
        except BaseException:
            await client.store.delete(kubernetes.Secret, secret.name, client.namespace)
            raise
    except BaseException:
        await box.delete()
        raise
    await own(client.store, secret.name, [made.run])
    return made


async def own(store: KubernetesStore, secret: str, owners: Sequence[run.Run]) -> None:
    """The Secret goes when the runs that use it have gone."""
    listed = [
        {
            "apiVersion": run.Run.resource.api_version,
            "kind": "Run",
            "name": each.name,
            "uid": each.uid,
        }
        for each in owners
    ]
    await store.patch(
        kubernetes.Secret, secret, owners[0].namespace,
        patch={"metadata": {"ownerReferences": listed}},
    )  # fmt: skip


async def results(store: KubernetesStore, ended: run.Run, mailbox: str) -> Any:
    """What the members of an ended run returned; raises what the first that failed raised."""
    box = Mailbox(store, ended.namespace, mailbox)
    members = ended.spec.roles[0].replicas
    found = [await box.result(str(rank)) for rank in range(members)]
    for result in found:
        if result is not None and result[:1] == b"E":
            unpack(result)
    if ended.status.phase != "Succeeded" or None in found:
        raise failures.RunFailed(ended)
    values = [unpack(result) for result in found if result is not None]
    return values[0] if members == 1 else values
