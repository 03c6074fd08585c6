"""A project of a few modules in a folder, imported anew after each change."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

from windlass.pipelines.fingerprint.step_key import StepKey, step_key

_numbers = itertools.count()


class Project:
    """Modules as text. `key` imports them and makes the key of `steps.step`."""

    def __init__(self, folder: Path, **modules: str) -> None:
        self._folder = folder
        self.modules = {name: textwrap.dedent(text) for name, text in modules.items()}

    def key(self, parameters: dict[str, Any] | None = None, **options: Any) -> StepKey:
        function = self.load("steps").step
        options = {"inputs": {}, "environment": "python 3", **options}
        return step_key(function, parameters or {}, **options)

    def load(self, module: str) -> types.ModuleType:
        """The module, imported from files that were just written."""
        folder = self._folder / str(next(_numbers))  # bytecode of another version is never found
        folder.mkdir(parents=True)
        for name, text in self.modules.items():
            (folder / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        sys.path.insert(0, str(folder))
        try:
            importlib.invalidate_caches()
            loaded = importlib.import_module(module)
            for name in self.modules:
                importlib.import_module(name)
            return loaded
        finally:
            sys.path.remove(str(folder))

    def forget(self) -> None:
        for name in self.modules:
            sys.modules.pop(name, None)
