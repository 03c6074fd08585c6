"""Keys of steps: what changes them, what does not, and which part is named."""

from __future__ import annotations

import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pipelines.project import Project
from windlass.pipelines.fingerprint import libraries
from windlass.pipelines.fingerprint.collector import CannotFingerprint
from windlass.pipelines.fingerprint.step_key import changes, step_key

STEPS = """
    import dataclasses
    import functools
    import json

    import helpers
    from helpers import scale

    RATE = 0.5
    NAMES = {"b", "a", "c"}


    @dataclasses.dataclass
    class Model:
        depth: int = 3

        def fit(self, rows):
            return [helpers.clean(row) for row in rows]


    def decorated(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)
        return call


    def power(exponent):
        return lambda value: value ** exponent


    square = power(2)


    @decorated
    def prepare(rows):
        return Model().fit(rows)


    def step(n, offset=1):
        import lazily
        rows = prepare(range(n))
        return json.dumps([scale(square(row)) * RATE + offset for row in rows]), lazily.late()
"""
HELPERS = """
    import os

    FACTOR = 3


    def clean(row):
        return max(row, 0)


    def scale(value):
        return value * FACTOR


    def unrelated(value):
        return os.path.join("a", value)
"""
LAZILY = """
    def late():
        return "late"


    def never():
        return 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path, steps=STEPS, helpers=HELPERS, lazily=LAZILY)
    yield made
    made.forget()


CHANGES = {
    "its own code": ("steps", "+ offset for", "- offset for", "code steps.step"),
    "a default": ("steps", "offset=1", "offset=2", "default steps.step.0"),
    "a constant of its module": ("steps", "RATE = 0.5", "RATE = 0.6", "value steps.RATE"),
    "the type of a constant": ("steps", "RATE = 0.5", "RATE = '0.5'", "value steps.RATE"),
    "a helper of another module": ("helpers", "max(row, 0)", "max(row, 1)", "code helpers.clean"),
    "a constant of a helper": ("helpers", "FACTOR = 3", "FACTOR = 4", "value helpers.FACTOR"),
    "a method": (
        "steps", "for row in rows]\n\n", "for row in rows[1:]]\n\n", "code steps.Model.fit",
    ),
    "a field of a dataclass": (
        "steps", "depth: int = 3", "depth: int = 4", "value steps.Model.depth",
    ),
    "a closure": (
        "steps", "power(2)", "power(3)", "closure steps.power.<locals>.<lambda>.exponent",
    ),
    "a decorator": (
        "steps", "return function(*args)", "return function(*args[:1])",
        "code steps.prepare",
    ),
    "an import inside": ("lazily", 'return "late"', 'return "later"', "code lazily.late"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_what_a_step_depends_on_is_a_miss_that_names_it(
    project: Project, case: str
) -> None:
    module, old, new, named = CHANGES[case]
    before = project.key({"n": 3})
    assert old in project.modules[module]
    project.modules[module] = project.modules[module].replace(old, new)
    after = project.key({"n": 3})
    assert after.digest != before.digest
    assert named in [f"{each.kind} {each.name}" for each in changes(before.parts, after.parts)]


IRRELEVANT = {
    "a comment": ("steps", "RATE = 0.5", "RATE = 0.5  # chosen by hand"),
    "empty lines": ("steps", "    import lazily\n", "\n\n    import lazily\n\n"),
    "a docstring": ("steps", "    import lazily\n", '    """Does it."""\n    import lazily\n'),
    "line breaks": ("steps", "prepare(range(n))", "prepare(\n        range(n)\n    )"),
    "an unrelated function": ("helpers", '"a", value', '"b", value'),
    "a new function": ("helpers", "FACTOR = 3", "def new(): pass\n\n\nFACTOR = 3"),
    "an unused function of an import": ("lazily", "return 1", "return 2"),
    "the order of a set": ("steps", '{"b", "a", "c"}', '{"c", "b", "a"}'),
}  # fmt: skip


@pytest.mark.parametrize("case", IRRELEVANT)
def test_other_changes_are_hits(project: Project, case: str) -> None:
    module, old, new = IRRELEVANT[case]
    before = project.key({"n": 3})
    assert old in project.modules[module]
    project.modules[module] = project.modules[module].replace(old, new)
    assert project.key({"n": 3}) == before


def test_the_name_of_a_local_variable_changes_nothing(project: Project) -> None:
    project.modules["helpers"] += "\n\ndef twice(x):\n    kept = x * 2\n    return kept\n"
    project.modules["steps"] = project.modules["steps"].replace(
        "scale(square", "helpers.twice(square"
    )
    before = project.key()
    project.modules["helpers"] = project.modules["helpers"].replace("kept", "doubled")
    assert project.key() == before


def test_parameters_inputs_environment_outputs_and_salt_are_part_of_the_key(
    project: Project,
) -> None:
    function = project.load("steps").step
    options = {"inputs": {"raw": "1"}, "environment": "e", "outputs": ("table",), "salt": ""}
    keys = {
        step_key(function, parameters, **{**options, **other}).digest
        for parameters, other in [
            ({"n": 1}, {}), ({"n": 1.0}, {}), ({"n": True}, {}), ({"n": "1"}, {}), ({}, {}),
            ({"n": [1]}, {}), ({"n": (1,)}, {}), ({"n": {1}}, {}), ({"n": {1: 2}}, {}),
            ({"n": 0.0}, {}), ({"n": -0.0}, {}), ({"m": 1}, {}),
            ({"n": 1}, {"inputs": {"raw": "2"}}), ({"n": 1}, {"inputs": {"row": "1"}}),
            ({"n": 1}, {"environment": "f"}), ({"n": 1}, {"outputs": ("other",)}),
            ({"n": 1}, {"salt": "again"}),
        ]
    }  # fmt: skip
    assert len(keys) == 17
    ignored = [step_key(function, {"n": n}, ignore=["n"], **options).digest for n in (1, 2)]
    assert ignored[0] == ignored[1]


def test_the_order_of_sets_and_the_process_do_not_matter(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from windlass.pipelines.fingerprint.step_key import step_key\n"
        "NAMES = {'b', 'a', 'c', 'd', 'e'}\n"
        "def step(x):\n    return x in {'p', 'q', 'r', 's'} or x in NAMES\n"
        "print(step_key(step, {'x': {'u', 'v', 'w'}}, inputs={}, environment='').digest)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, str(program)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1


def test_two_functions_that_change_places_are_a_miss(project: Project) -> None:
    project.modules["steps"] = """
def first(x): return x + 1
def second(x): return x + 2
a, b = first, second
def step(): return a(1) * 2 + b(1)
"""
    before = project.key()
    project.modules["steps"] = project.modules["steps"].replace("first, second", "second, first")
    assert project.key().digest != before.digest


def test_lambdas_of_one_line_are_different(project: Project) -> None:
    text = "functions = [lambda x: x + 1, lambda x: x + 2]\ndef step(): return functions[0](1)\n"
    project.modules["steps"] = text
    before = project.key()
    project.modules["steps"] = text.replace("x + 1, lambda x: x + 2", "x + 2, lambda x: x + 1")
    assert project.key().digest != before.digest


def test_functions_and_values_that_contain_themselves_have_a_key(project: Project) -> None:
    project.modules["steps"] = """
loop = [1]
loop.append(loop)
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
def step(): return even(4), loop
"""
    before = project.key()
    assert project.key() == before
    project.modules["steps"] = project.modules["steps"].replace("[1]", "[2]")
    assert project.key().digest != before.digest


def test_a_function_that_reads_names_by_text_depends_on_its_whole_module(project: Project) -> None:
    project.modules["steps"] = "HIDDEN = 1\ndef step(): return globals()['HIDDEN']\n"
    before = project.key()
    project.modules["steps"] = project.modules["steps"].replace("HIDDEN = 1", "HIDDEN = 2")
    assert project.key().digest != before.digest


def test_a_module_that_is_passed_on_counts_as_a_whole(project: Project) -> None:
    project.modules["steps"] = (
        "import helpers\ndef step(name='clean'): return getattr(helpers, name)(1)\n"
    )
    before = project.key()
    project.modules["helpers"] = project.modules["helpers"].replace('"a", value', '"b", value')
    assert project.key().digest != before.digest


def test_a_module_that_is_imported_by_a_computed_name_counts(project: Project) -> None:
    project.modules["steps"] = (
        "import importlib\n"
        "def step(name='helpers'): return importlib.import_module(name).clean(1)\n"
    )
    before = project.key()
    project.modules["helpers"] = project.modules["helpers"].replace("max(row, 0)", "max(row, 9)")
    assert project.key().digest != before.digest


def test_arrays_are_compared_by_content() -> None:
    numpy = pytest.importorskip("numpy")

    def step(table: object) -> object:
        return table

    first, same, other = (numpy.arange(6).reshape(2, 3) for _ in range(3))
    other[1, 2] = 9
    keys = [
        step_key(step, {"table": each}, inputs={}, environment="").digest
        for each in (first, same, other, first.astype("float32"), first.reshape(3, 2))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_a_file_has_the_same_keys_as_a_program_and_as_a_pipeline_of_the_command_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "steps.py"
    file.write_text("RATE = 1\ndef helper(): return RATE\ndef step(): return helper()\n")
    keys = []
    for name in ("__main__", libraries.PROGRAM):
        for rate in (1, 2):
            names = runpy.run_path(str(file), run_name=name)
            names["step"].__globals__["RATE"] = rate
            # Names that runpy returns are a copy of those of the functions.
            keys.append(step_key(names["step"], {}, inputs={}, environment="").digest)
    assert keys[:2] == keys[2:]
    assert keys[0] != keys[1]


def test_an_object_that_cannot_be_compared_is_named() -> None:
    lock = threading.Lock()

    def step() -> bool:
        return lock.locked()

    with pytest.raises(CannotFingerprint, match=r"_thread\.lock cannot be compared"):
        step_key(step, {}, inputs={}, environment="")
    with pytest.raises(CannotFingerprint, match="parameter guard"):
        step_key(len, {"guard": lock}, inputs={}, environment="")


def test_a_library_counts_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    def step() -> object:
        return yaml.safe_load("a: 1")

    before = step_key(step, {}, inputs={}, environment="")
    assert before.parts["library yaml"].startswith("PyYAML ")
    monkeypatch.setattr(libraries, "version_of", lambda top: f"{top} 99")
    after = step_key(step, {}, inputs={}, environment="")
    assert [str(each) for each in changes(before.parts, after.parts)] == [
        "library yaml was changed"
    ]
