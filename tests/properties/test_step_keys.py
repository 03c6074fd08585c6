"""Laws of step keys over random projects: a change that changes the result is never a hit, and a
change of something that the step does not use is never a miss.

The judge of the first is the step itself: it is executed before and after. Each function of a
project adds a number of its own to the result, in one of many forms (closure, default, method ...),
so whatever a function of the call graph depends on shows in the result.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import settings
from tests.unit.pipelines.project import Project
from windlass.pipelines.fingerprint.step_key import changes

pytestmark = settings.CAMPAIGN

MODULES = ("steps", "helpers", "deeper")
FORMS = {
    "plain": "def {name}(x):\n    return x + {number}{calls}\n",
    "lambda": "{name} = lambda x: x + {number}{calls}\n",
    "value": "VALUE_{name} = {number}\ndef {name}(x):\n    return x + VALUE_{name}{calls}\n",
    "mapping": "MAP_{name} = {{'a': [{number}]}}\ndef {name}(x):\n"
    "    return x + MAP_{name}['a'][0]{calls}\n",
    "default": "def {name}(x, y={number}):\n    return x + y{calls}\n",
    "keyword": "def {name}(x, *, y={number}):\n    return x + y{calls}\n",
    "closure": "def make_{name}(y):\n    def inner(x):\n        return x + y{calls}\n"
    "    return inner\n{name} = make_{name}({number})\n",
    "partial": "import functools\ndef base_{name}(y, x):\n    return x + y{calls}\n"
    "{name} = functools.partial(base_{name}, {number})\n",
    "method": "class Class_{name}:\n    def get(self, x):\n        return x + {number}{calls}\n"
    "def {name}(x):\n    return Class_{name}().get(x)\n",
    "inherited": "class Base_{name}:\n    def get(self, x):\n        return x + {number}{calls}\n"
    "class Class_{name}(Base_{name}):\n    pass\n"
    "def {name}(x):\n    return Class_{name}().get(x)\n",
    "object": "class Class_{name}:\n    def __init__(self, y):\n        self.y = y\n"
    "OBJECT_{name} = Class_{name}({number})\n"
    "def {name}(x):\n    return x + OBJECT_{name}.y{calls}\n",
    "property": "class Class_{name}:\n    @property\n    def y(self):\n        return {number}\n"
    "def {name}(x):\n    return x + Class_{name}().y{calls}\n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass Class_{name}:\n"
    "    y: int = {number}\ndef {name}(x):\n    return x + Class_{name}().y{calls}\n",
    "decorated": "import functools\ndef wrap_{name}(f):\n    @functools.wraps(f)\n"
    "    def call(x):\n        return f(x) + {number}\n    return call\n"
    "@wrap_{name}\ndef {name}(x):\n    return x{calls}\n",
    "cached": "import functools\n@functools.lru_cache\ndef {name}(x):\n"
    "    return x + {number}{calls}\n",
    "nested": "def {name}(x):\n    def inner():\n        return {number}\n"
    "    return sum([inner() for _ in range(1)]) + x{calls}\n",
    "attribute": "def {name}(x):\n    return x + {name}.y{calls}\n{name}.y = {number}\n",
    "enum": "import enum\nclass Enum_{name}(enum.Enum):\n    A = {number}\n"
    "def {name}(x):\n    return x + Enum_{name}.A.value{calls}\n",
    "generator": "def {name}(x):\n    return x + next(y for y in ({number},)){calls}\n",
    "by name": "def {name}(x):\n    return x + globals()['HIDDEN_{name}']{calls}\n"
    "HIDDEN_{name} = {number}\n",
}  # fmt: skip
NOISE = (
    "# a comment {number}\n",
    "def noise_{number}():\n    return {number}\n",
    "NOISE_{number} = {number}\n",
    "import sys\n",
)


@dataclasses.dataclass
class Function:
    name: str
    module: str
    form: str
    number: int
    calls: list[Function]
    inside: bool
    """Whether it imports what it calls inside its body, and not at the top of its module."""

    def text(self) -> str:
        calls = "".join(f" + {_path(self, each)}(0)" for each in self.calls)
        return FORMS[self.form].format(name=self.name, number=self.number, calls=calls)


def _path(caller: Function, called: Function) -> str:
    if called.module == caller.module:
        return called.name
    if caller.inside:
        return f"__import__('{called.module}').{called.name}"
    return f"{called.module}.{called.name}"


@st.composite
def projects(draw: st.DrawFn) -> list[Function]:
    """Functions that call only later ones; the first is the step."""
    count = draw(st.integers(2, 7))
    made: list[Function] = []
    for index in reversed(range(count)):
        calls = draw(st.lists(st.sampled_from(made), max_size=3, unique_by=id)) if made else []
        form = "plain" if index == 0 else draw(st.sampled_from(sorted(FORMS)))
        module = "steps" if index == 0 else draw(st.sampled_from(MODULES))
        # Modules import only those after them, so that there are no cycles.
        calls = [each for each in calls if MODULES.index(each.module) >= MODULES.index(module)]
        name = "step" if index == 0 else f"f{index}"
        inside = draw(st.booleans())
        made.append(Function(name, module, form, draw(st.integers(1, 9)), calls, inside))
    return made[::-1]


def write(functions: list[Function], noise: random.Random | None) -> dict[str, str]:
    texts = {}
    for position, module in enumerate(MODULES):
        parts = [f"import {each}\n" for each in MODULES[position + 1 :]]
        # A function comes after those that it calls: some forms execute at import.
        parts += [each.text() for each in reversed(functions) if each.module == module]
        if noise is not None:
            at = noise.randrange(len(parts) + 1)
            parts.insert(at, noise.choice(NOISE).format(number=noise.randrange(1000)))
        texts[module] = "\n".join(parts)
    return texts


def _reads_all(functions: list[Function]) -> bool:
    """Whether a function reads names by text: then all of the modules counts, noise included."""
    return any(each.form == "by name" or (each.inside and each.calls) for each in functions)


@given(functions=projects(), data=st.data())
@settings.cases(250, 10_000)
def test_a_change_that_changes_the_result_is_a_miss(
    functions: list[Function], data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from(functions))
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), **write(functions, None))
        before, result = project.key({"x": 1}), project.load("steps").step(1)
        assert project.key({"x": 1}) == before
        changed.number += data.draw(st.integers(1, 5))
        project.modules.update(write(functions, None))
        after, other = project.key({"x": 1}), project.load("steps").step(1)
        project.forget()
    if other != result:
        assert after.digest != before.digest, f"{changed} changed {result} to {other}"
        assert changes(before.parts, after.parts)


@given(functions=projects(), seed=st.integers(0, 1 << 30))
@settings.cases(150, 10_000)
def test_a_change_of_what_the_step_does_not_use_is_a_hit(
    functions: list[Function], seed: int
) -> None:
    if _reads_all(functions):
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), **write(functions, None))
        before = project.key({"x": 1})
        project.modules.update(write(functions, random.Random(seed)))
        after = project.key({"x": 1})
        project.forget()
    assert [str(each) for each in changes(before.parts, after.parts)] == []
