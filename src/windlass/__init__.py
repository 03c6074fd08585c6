"""Windlass: one shared AI/ML platform from a mix of machines.

    import windlass

    handle = windlass.run(["python", "train.py"], workers=2, gpus=1)
    with windlass.Executor(max_workers=4) as pool: ...
    windlass.report(0.5, loss=0.1)          # inside a job

Importing this module loads nothing heavy: names are loaded when they are first used.
"""

from __future__ import annotations

from windlass.version import VERSION

__version__ = VERSION

TYPE_CHECKING = False  # typing itself is not light
if TYPE_CHECKING:
    from typing import Any

    from windlass.injob.library.windlass.job_context import Context as Context
    from windlass.injob.library.windlass.job_context import context as context
    from windlass.injob.library.windlass.job_context import progress as progress
    from windlass.injob.library.windlass.job_context import report as report
    from windlass.injob.library.windlass.saving import save as save
    from windlass.sdk.async_client import AsyncClient as AsyncClient
    from windlass.sdk.errors import CannotRun as CannotRun
    from windlass.sdk.errors import CannotShip as CannotShip
    from windlass.sdk.errors import RemoteError as RemoteError
    from windlass.sdk.errors import RunFailed as RunFailed
    from windlass.sdk.errors import WorkerLost as WorkerLost
    from windlass.sdk.executor.executor import Executor as Executor
    from windlass.sdk.pipelines.pipeline_definition import pipeline as pipeline
    from windlass.sdk.pipelines.step_definition import map_step as map  # noqa: A004, F401
    from windlass.sdk.pipelines.step_definition import step as step
    from windlass.sdk.run_handle import AsyncRunHandle as AsyncRunHandle
    from windlass.sdk.sync_client import Client as Client
    from windlass.sdk.sync_client import RunHandle as RunHandle
    from windlass.sdk.sync_client import load as load
    from windlass.sdk.sync_client import start as run  # noqa: F401 (offered under this name)
    from windlass.sdk.tuning.tune import tune as tune
    from windlass.store import errors as errors

_LAZY = {
    "AsyncClient": "windlass.sdk.async_client",
    "AsyncRunHandle": "windlass.sdk.run_handle",
    "CannotRun": "windlass.sdk.errors",
    "CannotShip": "windlass.sdk.errors",
    "Client": "windlass.sdk.sync_client",
    "Context": "windlass.injob.library.windlass.job_context",
    "Executor": "windlass.sdk.executor.executor",
    "RemoteError": "windlass.sdk.errors",
    "RunFailed": "windlass.sdk.errors",
    "RunHandle": "windlass.sdk.sync_client",
    "WorkerLost": "windlass.sdk.errors",
    "context": "windlass.injob.library.windlass.job_context",
    "errors": "windlass.store.errors",
    "load": "windlass.sdk.sync_client",
    "map": "windlass.sdk.pipelines.step_definition",
    "pipeline": "windlass.sdk.pipelines.pipeline_definition",
    "progress": "windlass.injob.library.windlass.job_context",
    "report": "windlass.injob.library.windlass.job_context",
    "run": "windlass.sdk.sync_client",
    "save": "windlass.injob.library.windlass.saving",
    "step": "windlass.sdk.pipelines.step_definition",
    "tune": "windlass.sdk.tuning.tune",
}
_RENAMED = {"run": "start", "map": "map_step"}
"""Names that are offered under another one."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LAZY[name])
    found = module if name == "errors" else getattr(module, _RENAMED.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
