"""Follows the references of a function, and gives each thing it depends on a name and a digest.

The digest of a function names what it refers to; the contents of these are parts of their own. So a
miss can be explained by the part that changed: `code helpers.clean`, `value train.RATE`.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import importlib
import struct
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.pipelines.fingerprint import libraries
from windlass.pipelines.fingerprint.code_references import (
    CodeReader,
    ComputedImport,
    GlobalReference,
    ImportReference,
    Reference,
)

_CODE = CodeReader()
_ALL_NAMES = frozenset({"globals", "vars", "eval", "exec", "locals"})
"""Builtins with which a function reads names that its code does not show."""
_MISSING = object()
_CLASS_DETAILS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "_abc_impl", "__parameters__", "__orig_bases__",
})  # fmt: skip
_MODULE_DETAILS = frozenset({
    "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__",
    "__path__", "__spec__", "__annotations__",
})  # fmt: skip
_WRAPPERS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip


_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


class CannotFingerprint(TypeError):
    """A step depends on an object whose content cannot be compared, such as an open file."""


class Collector:
    """Collects the parts of one step. Use a new one for each key: values may have changed."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self._labels: dict[int, tuple[Any, str]] = {}
        """Identity of a function or class -> the object, kept alive, and its label."""
        self._open: dict[int, int] = {}
        """Identity of each value that is being read -> its depth: values may contain themselves."""
        self._modules: set[str] = set()

    # --- functions

    def function(self, function: types.FunctionType) -> str:
        """Adds the function and all that it refers to; returns its label."""
        known = self._labels.get(id(function))
        if known is not None:
            return known[1]
        if not libraries.is_project(function.__module__ or "__main__"):
            return self._library(function.__module__, function.__qualname__)
        label = self._label("code", function)
        name = label.removeprefix("code ")
        facts = _CODE.read(function.__code__)
        self.parts[label] = facts.digest
        uses = [
            *self._cells(name, function),
            *self._defaults(name, function),
            *(f"{each} {self._reference(each, function)}" for each in facts.references),
            *(
                f"attribute {key} {self._part(f'value {name}.{key}', each)}"
                for key, each in sorted(vars(function).items())
                if key != "__wrapped__"  # the closure has it
            ),
        ]
        # Which function or value a name stands for. Their contents have parts of their own, which
        # say more when they change.
        self.parts[f"uses {name}"] = _digest("\n".join(uses))
        return label

    def _defaults(self, name: str, function: types.FunctionType) -> Iterator[str]:
        by_position = dict(enumerate(function.__defaults__ or ()))
        for key, default in [
            *by_position.items(),
            *sorted((function.__kwdefaults__ or {}).items()),
        ]:
            yield f"default {key} {self._part(f'default {name}.{key}', default)}"

    def _cells(self, owner: str, function: types.FunctionType) -> Iterator[str]:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                yield f"closure {name} empty"
                continue
            yield f"closure {name} {self._part(f'closure {owner}.{name}', content)}"

    def _label(self, kind: str, thing: Any) -> str:
        module = libraries.module_name(thing.__module__)
        plain = label = f"{kind} {module}.{thing.__qualname__}"
        number = 1
        while label in self.parts:  # two lambdas of one function, or a redefinition
            number += 1
            label = f"{plain}#{number}"
        self._labels[id(thing)] = (thing, label)
        self.parts[label] = ""  # its place, while what it refers to is read
        return label

    def _reference(self, reference: Reference, function: types.FunctionType) -> str:
        if isinstance(reference, ImportReference):
            return self._imported(reference, function.__globals__)
        if isinstance(reference, ComputedImport):
            return self._all_loaded()
        name = reference.name
        module = function.__globals__.get("__name__", function.__module__)
        module = libraries.module_name(module)
        found = function.__globals__.get(name, _MISSING)
        if found is _MISSING:
            if name in _ALL_NAMES:
                self._all_of(module, function.__globals__)
            return f"builtin {name}" if hasattr(builtins, name) else "missing"
        return self._attribute(f"{module}.{name}", found, reference)

    def _attribute(
        self, path: str, found: Any, reference: GlobalReference | ImportReference
    ) -> str:
        """Follows attributes as long as they are read from modules."""
        for name in reference.attributes:
            if not isinstance(found, types.ModuleType):
                break
            if not libraries.is_project(found.__name__):
                return self._library(found.__name__, name)
            path = f"{found.__name__}.{name}"
            found = getattr(found, name, _MISSING)
            if found is _MISSING:
                found = sys.modules.get(path, _MISSING)
            if found is _MISSING:
                return "missing"
        return self._part(f"value {path}", found)

    def _imported(self, reference: ImportReference, names: Mapping[str, Any]) -> str:
        module = reference.module
        if reference.level:
            package = str(names.get("__package__") or names.get("__name__", ""))
            base = package.rsplit(".", reference.level - 1)[0]
            module = f"{base}.{module}" if module else base
        if not libraries.is_project(module):
            return self._library(module, ".".join(reference.attributes))
        try:
            found: Any = importlib.import_module(module)
        except Exception as problem:  # the step will meet it, too
            return f"cannot be imported: {type(problem).__name__}"
        if reference.attributes == ("__name__",):
            return f"module {module}"
        if reference.attributes and not hasattr(found, reference.attributes[0]):
            submodule = f"{module}.{reference.attributes[0]}"
            rest = ImportReference(submodule, 0, reference.attributes[1:])
            return self._imported(rest, names)
        return self._attribute(module, found, reference)

    # --- modules

    def _library(self, module: str | None, name: str) -> str:
        top = (module or "builtins").partition(".")[0]
        if top not in ("builtins", "__builtin__") and top not in sys.stdlib_module_names:
            self.parts[f"library {top}"] = libraries.version_of(top)
        return f"library {module}.{name}"

    def _module(self, module: types.ModuleType) -> str:
        if not libraries.is_project(module.__name__):
            return self._library(module.__name__, "")
        self._all_of(module.__name__, vars(module))
        return f"module {module.__name__}"

    def _all_of(self, module: str, names: Mapping[str, Any]) -> None:
        """All names of a module: it is used in a way that does not show which."""
        if module in self._modules:
            return
        self._modules.add(module)
        for name in sorted(set(names) - _MODULE_DETAILS):
            try:
                reference = self._part(f"value {module}.{name}", names[name])
            except CannotFingerprint:  # which of the names are read is not known: none is needed
                reference = f"not compared: {type(names[name]).__qualname__}"
            self.parts[f"name {module}.{name}"] = _digest(reference)

    def _all_loaded(self) -> str:
        """All modules of the project: one of them may be imported by a computed name."""
        for name, module in sorted(sys.modules.items()):
            # Modules without a file are made by extensions; `__main__` may have none in a notebook.
            own = name == "__main__" or getattr(module, "__file__", None)
            if isinstance(module, types.ModuleType) and own and libraries.is_project(name):
                self._all_of(name, dict(vars(module)))
        return "all modules"

    # --- classes

    def _class(self, cls: type) -> str:
        known = self._labels.get(id(cls))
        if known is not None:
            return known[1]
        module = cls.__module__
        if not isinstance(module, str) or not libraries.is_project(module):
            return self._library(str(module), cls.__qualname__)
        label = self._label("class", cls)
        lines = [f"metaclass {self.value(type(cls))}"]
        lines += [f"base {self.value(base)}" for base in cls.__bases__]
        if issubclass(cls, enum.Enum):
            lines += [f"member {each.name} {self.value(each.value)}" for each in cls]
        else:
            lines += self._class_body(label, cls)
        self.parts[label] = _digest("\n".join(lines))
        return label

    def _class_body(self, label: str, cls: type) -> Iterator[str]:
        for name, content in sorted(vars(cls).items()):
            if name in _CLASS_DETAILS or isinstance(content, types.MemberDescriptorType):
                continue
            yield f"{name} {self._part(f'value {label[6:]}.{name}', content)}"

    # --- values

    def _part(self, name: str, content: Any) -> str:
        """The reference to a value. Plain data becomes a part of its own, so that its change can be
        named; functions, classes and modules are parts already."""
        reference = self.value(content)
        if reference.startswith("data "):
            self.parts[name] = reference
        return reference

    def value(self, content: Any) -> str:
        """A text that differs whenever the content differs."""
        plain = _plain(content)
        if plain is not None:
            return f"data {plain}"
        named = self._named(content)
        if named is not None:
            return named
        if id(content) in self._open:
            return f"cycle {self._open[id(content)]}"
        self._open[id(content)] = len(self._open)
        try:
            return f"data {_digest(self._composed(content))}"
        finally:
            del self._open[id(content)]

    def _named(self, content: Any) -> str | None:
        """The reference to code; None for data."""
        if isinstance(content, types.FunctionType):
            return self.function(content)
        if isinstance(content, type):
            return self._class(content)
        if isinstance(content, types.ModuleType):
            return self._module(content)
        if isinstance(content, _WRAPPERS):
            owner = getattr(content, "__self__", None)
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                return f"data bound {content.__name__} {self.value(owner)}"
            return self._library(getattr(content, "__module__", None), content.__qualname__)
        return None

    def _composed(self, content: Any) -> str:
        kind = type(content)
        if kind in (list, tuple):
            return f"{kind.__name__}[{','.join(map(self.value, content))}]"
        if kind in (set, frozenset):
            return f"{kind.__name__}{{{','.join(sorted(map(self.value, content)))}}}"
        if kind in (dict, types.MappingProxyType):
            pairs = (f"{self.value(key)}:{self.value(each)}" for key, each in content.items())
            return f"dict{{{','.join(pairs)}}}"
        if isinstance(content, types.MethodType):
            return f"method {self.value(content.__func__)} {self.value(content.__self__)}"
        if isinstance(content, (staticmethod, classmethod)):
            return f"{kind.__name__} {self.value(content.__func__)}"
        if isinstance(content, property):
            return f"property {self._all(content.fget, content.fset, content.fdel)}"
        if isinstance(content, functools.cached_property):
            return f"cached_property {self.value(content.func)}"
        if isinstance(content, enum.Enum):
            return f"enum {self._class(kind)} {content.name}"
        if isinstance(content, _WEAK):
            return f"{kind.__name__} of weak references"  # a cache: what it has changes no result
        wrapped = getattr(content, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):  # functools.lru_cache, and decorators like it
            return f"wrapper {self._class(kind)} {self.value(wrapped)}"
        return self._reduced(content)

    def _all(self, *contents: Any) -> str:
        return ",".join(map(self.value, contents))

    def _reduced(self, content: Any) -> str:
        """An object by what pickle would store of it: its class, arguments and state."""
        named = f"{type(content).__module__}.{type(content).__qualname__}"
        try:
            reduced = content.__reduce_ex__(4)
        except Exception as problem:
            raise CannotFingerprint(
                f"an object of {named} cannot be compared with that of another run ({problem})"
            ) from problem
        if isinstance(reduced, str):
            return f"global {type(content).__module__}.{reduced}"
        make, arguments, *rest = reduced
        state = rest[0] if rest else None
        items = [list(each) if each is not None else None for each in rest[1:3]]
        return f"object {named} {self._all(make, arguments, state, *items)}"


def _plain(content: Any) -> str | None:
    """The digest or text of a scalar, with its type; None for anything else."""
    kind = type(content)
    if content is None or kind is bool:
        return repr(content)
    if kind is int:
        return f"int:{content:x}"
    if kind is float:
        return f"float:{struct.pack('>d', content).hex()}"
    if kind is complex:
        return f"complex:{struct.pack('>dd', content.real, content.imag).hex()}"
    if kind is str:
        return f"str:{_digest(content)}"
    if kind in (bytes, bytearray, memoryview):
        return f"{kind.__name__}:{hashlib.sha256(content).hexdigest()}"
    if content is Ellipsis or content is NotImplemented:
        return repr(content)
    if kind is range or kind is slice:
        return repr(content)
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
