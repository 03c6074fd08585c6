"""What a program inside a job needs of Windlass: `context`, `progress`, `report`, `save`, `load`.

The platform puts this package on the Python path of every job. It uses the standard library of
Python 3.8 or newer alone. If Windlass itself is installed in the job's environment, importing this
package imports that one.
"""

import os
import sys

__version__ = "0.1.0"


def _installed():  # type: ignore[no-untyped-def]
    """The import specification of a Windlass that is installed; None if there is none."""
    from importlib.machinery import PathFinder

    # Folders with a copy of this package are left out: a job may start another job.
    others = [
        folder
        for folder in sys.path
        if not os.path.exists(os.path.join(folder, "windlass", "job_context.py"))
    ]
    found = PathFinder.find_spec("windlass", others)
    return found if found is not None and found.loader is not None else None


_found = _installed() if __name__ == "windlass" else None  # type: ignore[no-untyped-call]
if _found is not None:
    from importlib.util import module_from_spec

    _module = module_from_spec(_found)
    sys.modules[__name__] = _module
    _found.loader.exec_module(_module)
else:
    from .job_context import Context, context, progress, report
    from .loading import load
    from .saving import save

    __all__ = ["Context", "context", "load", "progress", "report", "save"]


def __getattr__(name):  # type: ignore[no-untyped-def]
    raise AttributeError(
        f"module 'windlass' has no attribute {name!r} inside this job: only context, progress, "
        "report, save and load are available; add windlass-platform to the requirements of the run "
        "for the others"
    )
