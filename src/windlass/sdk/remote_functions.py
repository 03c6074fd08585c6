"""Functions as runs: `run(function)` is one Run whose replicas each call the function once.

`executor` keeps workers that take one call after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from windlass.kinds.types import core, run
from windlass.sdk import run_builder
from windlass.sdk.run_handle import AsyncRunHandle
from windlass.sdk.run_options import Options
from windlass.sdk.transfer import mailbox
from windlass.store.kubernetes.client import KubernetesStore

SubmitCommand = Callable[..., Awaitable[AsyncRunHandle]]


async def submit(
    store: KubernetesStore,
    namespace: str,
    submit_command: SubmitCommand,
    function: Callable[..., Any],
    args: Sequence[Any],
    options: Options,
) -> AsyncRunHandle:
    """Submits a run whose replicas each call the function once; returns its handle.

    `submit_command` submits the command of the worker with the options of a run.
    """
    packed = mailbox.pack(function, args, {})
    name = options.get("name") or run_builder.name_for([getattr(function, "__name__", "function")])
    box = await mailbox.Mailbox.create(store, namespace)
    try:
        await box.put("function", packed)
        secret = await store.create(box.secret(f"{name}-calls"))
        run_options = cast(Options, dict(options))
        run_options["name"] = name
        run_options["secrets"] = [*options.get("secrets", ()), secret.name]
        run_options["env"] = {**options.get("env", {}), "WINDLASS_CALLS_MODE": "run"}
        run_options["annotations"] = {
            **options.get("annotations", {}),
            mailbox.ANNOTATION: box.name,
        }
        try:
            made = await submit_command(box.command(options), **run_options)
        except BaseException:
            await store.delete(core.Secret, secret.name, namespace)
            raise
    except BaseException:
        await box.delete()
        raise
    await own(store, secret.name, [made.run])
    return made


async def own(store: KubernetesStore, secret: str, owners: Sequence[run.Run]) -> None:
    """Makes the runs owners of the Secret: it is deleted when they are gone."""
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
        core.Secret, secret, owners[0].namespace,
        patch={"metadata": {"ownerReferences": listed}},
    )  # fmt: skip
