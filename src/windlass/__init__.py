"""Windlass: one shared AI/ML platform from a mix of machines.

    import windlass

    handle = windlass.run(["python", "train.py"], workers=2, gpus=1)
    with windlass.Executor(max_workers=4) as pool: ...
    windlass.report(0.5, loss=0.1)          # inside a job

Importing this module loads nothing heavy: names are loaded when they are first used.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing itself is not light
if TYPE_CHECKING:
    from typing import Any

    from windlass.sdk.aio import AsyncClient as AsyncClient
    from windlass.sdk.client import Client as Client
    from windlass.sdk.client import RunHandle as RunHandle
    from windlass.sdk.client import start as run  # noqa: F401 (offered under this name)
    from windlass.sdk.executor import Executor as Executor
    from windlass.sdk.failures import CannotShip as CannotShip
    from windlass.sdk.failures import RemoteError as RemoteError
    from windlass.sdk.failures import RunFailed as RunFailed
    from windlass.sdk.failures import WorkerLost as WorkerLost
    from windlass.sdk.handles import AsyncRunHandle as AsyncRunHandle
    from windlass.sdk.inside import Context as Context
    from windlass.sdk.inside import context as context
    from windlass.sdk.inside import progress as progress
    from windlass.sdk.inside import report as report
    from windlass.store import errors as errors

_LAZY = {
    "AsyncClient": "windlass.sdk.aio",
    "AsyncRunHandle": "windlass.sdk.handles",
    "CannotShip": "windlass.sdk.failures",
    "Client": "windlass.sdk.client",
    "Context": "windlass.sdk.inside",
    "Executor": "windlass.sdk.executor",
    "RemoteError": "windlass.sdk.failures",
    "RunFailed": "windlass.sdk.failures",
    "RunHandle": "windlass.sdk.client",
    "WorkerLost": "windlass.sdk.failures",
    "context": "windlass.sdk.inside",
    "errors": "windlass.store.errors",
    "progress": "windlass.sdk.inside",
    "report": "windlass.sdk.inside",
    "run": "windlass.sdk.client",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LAZY[name])
    found = module if name == "errors" else getattr(module, "start" if name == "run" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
