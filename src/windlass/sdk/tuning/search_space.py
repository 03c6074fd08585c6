"""The parameters of a study: their ranges, as a user writes them and as Optuna takes them.

1..4                  whole numbers            {"int": [1, 4]}
16..128:16            in steps                 {"int": [16, 128], "step": 16}
0.0..0.5              decimal numbers          {"float": [0.0, 0.5]}
log:1e-5..1e-1        on a logarithmic scale   {"log": [1e-5, 1e-1]}
adam,sgd              choices                  {"choice": ["adam", "sgd"]}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import optuna

Scalar = str | int | float | bool
_RANGE = re.compile(r"(log:)?([^.:]+(?:\.\d+)?(?:e[-+]?\d+)?)\.\.([^:]+?)(?::([^:]+))?", re.I)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_MOST_OF_GRID = 100_000
_FORMS = "write 1..4, 0.1..0.5, log:1e-5..1e-1, 16..128:16, or choices as adam,sgd"


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter."""

    kind: Literal["int", "float", "choice"]
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False
    choices: tuple[Scalar, ...] = ()

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna import distributions

        if self.kind == "choice":
            return distributions.CategoricalDistribution(self.choices)
        if self.kind == "int":
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            high -= (high - low) % step
            return distributions.IntDistribution(low, high, self.log, step)
        return distributions.FloatDistribution(self.low, self.high, self.log, self.step)

    def grid(self) -> list[Scalar]:
        """All values; ValueError if there is no end of them."""
        if self.kind == "choice":
            return list(self.choices)
        if self.kind == "int":
            values = range(int(self.low), int(self.high) + 1, int(self.step or 1))
            _refuse_large(len(values))
            return list(values)
        if self.step is None:
            raise ValueError("a decimal range has a grid only with a step: 0.0..0.5:0.1")
        count = int((self.high - self.low) / self.step + 1e-9)
        _refuse_large(count + 1)
        # Not above the bound, as 3 * 0.1 is: Optuna refuses such a value when a study continues.
        return [min(self.low + self.step * number, self.high) for number in range(count + 1)]


def read(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters by name; ValueError with the name of the wrong one."""
    if not space:
        raise ValueError("the study has no parameter to search")
    found = {}
    for name, value in space.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of a parameter")
        try:
            found[name] = _parameter(value)
        except (ValueError, TypeError) as problem:
            raise ValueError(f"parameter {name}: {problem}") from None
    return found


def plain(parameter: Parameter) -> dict[str, Any]:
    """As it is stored, and as `read` takes it."""
    if parameter.kind == "choice":
        return {"choice": list(parameter.choices)}
    bounds = [parameter.low, parameter.high]
    bounds = [int(each) for each in bounds] if parameter.kind == "int" else bounds
    step = {} if parameter.step is None else {"step": parameter.step}
    log = {"scale": "log"} if parameter.log else {}
    return {parameter.kind: bounds, **step, **log}


def _parameter(value: Any) -> Parameter:
    if isinstance(value, Parameter):
        return value
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if isinstance(value, tuple) and len(value) == 2 and all(_is_number(each) for each in value):
        return _range(*value)
    if isinstance(value, Sequence):
        return _choices(value)
    raise ValueError(f"{value!r} is no range and no list of choices; {_FORMS}")


def _from_mapping(value: Mapping[str, Any]) -> Parameter:
    kinds = [key for key in ("int", "float", "log", "choice") if key in value]
    unknown = value.keys() - {"int", "float", "log", "choice", "step", "scale"}
    if len(kinds) != 1 or unknown:
        raise ValueError("one of int, float, log and choice is needed, with step at most")
    (kind,) = kinds
    if kind == "choice":
        return _choices(value[kind])
    low, high = value[kind]
    if not (_is_number(low) and _is_number(high)):
        raise ValueError(f"{value[kind]!r} is not a pair of numbers")
    log = kind == "log" or value.get("scale") == "log"
    if kind == "float":
        low, high = float(low), float(high)
    return _range(low, high, value.get("step"), log=log)


def _from_text(text: str) -> Parameter:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        if "," not in text:
            raise ValueError(f"{text!r} is no range and no list of choices; {_FORMS}")
        return _choices([_scalar(each.strip()) for each in text.split(",")])
    log, low, high, step = match.groups()
    numbers = [_scalar(each) for each in (low, high, *([step] if step else []))]
    if not all(_is_number(each) for each in numbers):
        raise ValueError(f"{text!r} has a bound that is not a number; {_FORMS}")
    first, last, *steps = numbers
    return _range(first, last, steps[0] if steps else None, log=bool(log))


def _range(low: Any, high: Any, step: Any = None, *, log: bool = False) -> Parameter:
    whole = all(isinstance(each, int) for each in (low, high, step) if each is not None)
    if not low < high:
        raise ValueError(f"{low}..{high}: the first bound must be less than the second")
    if log and low <= 0:
        raise ValueError(f"{low}..{high}: a logarithmic scale needs bounds above 0")
    if log and step is not None:
        raise ValueError("a logarithmic scale has no step")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"step {step} does not fit into {low}..{high}")
    return Parameter("int" if whole else "float", low, high, step, log)


def _refuse_large(count: int) -> None:
    if count > _MOST_OF_GRID:
        raise ValueError(
            f"its grid has {count} values, of at most {_MOST_OF_GRID}; give a larger step, as "
            "1..1000:100, or choose another sampler"
        )


def _choices(values: Any) -> Parameter:
    found = tuple(values)
    if not found or not all(isinstance(each, (str, int, float, bool)) for each in found):
        raise ValueError("choices are texts, numbers or booleans, at least one")
    if len(set(found)) < len(found):
        raise ValueError("a choice is given twice")
    return Parameter("choice", choices=found)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scalar(text: str) -> Scalar:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
