"""What one code object executes and which global names it refers to.

Bytecode and not source is read: it is what Python executes, also in a notebook or after a file has
been edited. Comments, formatting, line numbers, docstrings and names of local variables are not
part of it.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import types
from collections.abc import Iterator
from typing import Any

_LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_LOADS_LOCAL = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_IMPORTS_BY_NAME = frozenset({"__import__", "import_module"})
_NO_OPERATION = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL"})


@dataclasses.dataclass(frozen=True, slots=True)
class GlobalReference:
    """A global name, and the attributes that are read from it: `helpers.text.clean`."""

    name: str
    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ImportReference:
    """An import inside a function: `from .text import clean`."""

    module: str
    level: int
    """Number of leading dots."""
    attributes: tuple[str, ...]
    """What is used of the module; empty: the module as a whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class ComputedImport:
    """An import of a module whose name the code does not show: `import_module(name)`."""


Reference = GlobalReference | ImportReference | ComputedImport


@dataclasses.dataclass(frozen=True, slots=True)
class CodeFacts:
    """What one code object, nested code included, executes and refers to."""

    digest: str
    references: tuple[Reference, ...]


class CodeReader:
    """Reads code objects; each once."""

    def __init__(self) -> None:
        # The code object is kept beside its facts: an identity is reused after its object is gone.
        self._read: dict[int, tuple[types.CodeType, CodeFacts]] = {}

    def read(self, code: types.CodeType) -> CodeFacts:
        known = self._read.get(id(code))
        if known is None:
            known = self._read[id(code)] = (code, _facts(code))
        return known[1]


def _facts(code: types.CodeType) -> CodeFacts:
    sink = hashlib.sha256()
    references: dict[Reference, None] = {}  # ordered, without duplicates
    for each in _with_nested(code):
        _write_code(each, sink)
        for reference in _references(each):
            references[reference] = None
    return CodeFacts(sink.hexdigest(), tuple(references))


def _with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested(constant)


def _write_code(code: types.CodeType, sink: Any) -> None:
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    head = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_varnames[:arguments], code.co_cellvars, code.co_freevars,
        getattr(code, "co_exceptiontable", b""),
    )  # fmt: skip
    sink.update(repr(head).encode("utf-8", "surrogatepass"))
    ordinals = _ordinals(code)
    for instruction in dis.get_instructions(code):
        if instruction.opname in _NO_OPERATION:
            continue
        sink.update(instruction.opname.encode())
        sink.update(_argument(instruction, ordinals).encode("utf-8", "surrogatepass"))
        sink.update(b"\0")


def _ordinals(code: types.CodeType) -> dict[int, int]:
    """Offset -> number of the next instruction that does something. Jumps are compared by it: the
    compiler adds NOPs for empty lines, and these would move the offsets."""
    found: dict[int, int] = {}
    number = 0
    for instruction in dis.get_instructions(code):
        found[instruction.offset] = number
        number += instruction.opname not in _NO_OPERATION
    return found


def _argument(instruction: dis.Instruction, ordinals: dict[int, int]) -> str:
    argument = instruction.argval
    if instruction.opname in ("LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK"):
        return str(instruction.arg)  # the name of a local variable changes nothing
    if isinstance(argument, types.CodeType):
        return "code"  # it follows, in the order of the constants
    if instruction.opcode in dis.hasconst:
        return constant_text(argument)
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        return str(ordinals.get(argument, argument))
    if instruction.opname in ("LOAD_GLOBAL", "LOAD_METHOD", "LOAD_ATTR"):
        return f"{argument} {instruction.arg is not None and instruction.arg & 1}"
    return repr(argument)


def constant_text(constant: Any) -> str:
    """A constant with its type; sets in an order of their own: theirs changes with the process."""
    if isinstance(constant, tuple):
        return f"({','.join(map(constant_text, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{','.join(sorted(map(constant_text, constant)))}}}"
    if isinstance(constant, types.CodeType):
        return "code"
    return f"{type(constant).__name__}:{constant!r}"


def _references(code: types.CodeType) -> Iterator[Reference]:
    """Global names with the attributes read from them, and imports.

    A module that is imported into a local variable is followed through that variable: only the
    attributes that are read from it count. If it is used in any other way, all of it counts.
    """
    listed = [each for each in dis.get_instructions(code) if each.opname not in _NO_OPERATION]
    modules: dict[str, ImportReference] = {}
    for position, instruction in enumerate(listed):
        name = instruction.opname
        if instruction.argval in _IMPORTS_BY_NAME and name != "IMPORT_NAME":
            yield _import_by_name(listed, position)
        if name in _LOADS_GLOBAL:
            yield GlobalReference(instruction.argval, _attributes(listed, position))
        elif name == "IMPORT_NAME":
            yield from _imports(listed, position, modules)
        elif name in _LOADS_LOCAL and instruction.argval in modules:
            module = modules[instruction.argval]
            read = _attributes(listed, position)
            yield dataclasses.replace(module, attributes=module.attributes + read)


def _import_by_name(listed: list[dis.Instruction], position: int) -> Reference:
    following = listed[position + 1] if position + 1 < len(listed) else None
    if following is not None and following.opname == "LOAD_CONST":
        module = following.argval
        if isinstance(module, str) and module and not module.startswith("."):
            return ImportReference(module, 0, ())
    return ComputedImport()


def _attributes(listed: list[dis.Instruction], position: int) -> tuple[str, ...]:
    found = []
    for instruction in listed[position + 1 :]:
        if instruction.opname not in _LOADS_ATTRIBUTE:
            break
        found.append(str(instruction.argval))
    return tuple(found)


def _imports(
    listed: list[dis.Instruction], position: int, modules: dict[str, ImportReference]
) -> Iterator[ImportReference]:
    level = listed[position - 2].argval if position >= 2 else 0
    names = listed[position - 1].argval if position >= 1 else None
    name = str(listed[position].argval)
    module = ImportReference(name, level if isinstance(level, int) else 0, ())
    if names:  # from module import a, b
        for each in names:
            wanted = () if each == "*" else (str(each),)
            yield dataclasses.replace(module, attributes=wanted)
        return
    # Its import is executed, whatever is used of it.
    yield dataclasses.replace(module, attributes=("__name__",))
    # `import a.b` binds `a`; `import a.b as c` reads b from a, and binds c to the module a.b.
    bound = dataclasses.replace(module, module=name.partition(".")[0])
    for instruction in listed[position + 1 :]:
        if instruction.opname in ("IMPORT_FROM", "SWAP", "POP_TOP", "ROT_TWO"):
            bound = module
        elif instruction.opname == "STORE_FAST":
            modules[str(instruction.argval)] = bound
            return
        else:  # into a variable that inner functions or others read: all of the module counts
            yield bound
            return
