"""Files with objects: what is read, on which line it stands, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.lib import exit_codes, manifests
from windlass.kinds.types.run import Run

RUN = """\
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata: {name: train}
spec:
  roles:
  - name: worker
    command: [python, train.py]
"""


def test_every_field_knows_its_line() -> None:
    (document,) = manifests.parse("# a comment\n" + RUN, "f.yaml")
    assert document.place("kind") == "f.yaml:3"
    assert document.place("spec.roles[0].command") == "f.yaml:8"
    assert document.place("spec.roles[0].command[1]") == "f.yaml:8"


def test_a_field_that_is_missing_points_to_the_nearest_part_above_it() -> None:
    (document,) = manifests.parse(RUN, "f.yaml")
    assert document.place("spec.roles[0].resources.cpu") == "f.yaml:6"
    assert document.place("spec.queue") == "f.yaml:4"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("---\n" + RUN + "---\n---\n" + RUN, ["train", "train"]),
        ('{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}', ["a"]),
        ("kind: List\nitems:\n- metadata: {name: x}\n- metadata: {name: y}\n", ["x", "y"]),
        ("", []),
        ("# nothing\n", []),
    ],
)
def test_documents_lists_and_json_are_taken_apart(text: str, names: list[str]) -> None:
    found = manifests.parse(text, "f")
    assert [document.data["metadata"]["name"] for document in found] == names


def test_items_of_a_list_keep_their_lines() -> None:
    found = manifests.parse("kind: List\nitems:\n- metadata: {name: x}\n- kind: Run\n", "f")
    assert found[1].place("kind") == "f:4"


def test_times_stay_the_text_they_were_written_as() -> None:
    (document,) = manifests.parse("at: 2026-01-01T10:20:00Z\nday: 2026-01-01\n", "f")
    assert document.data == {"at": "2026-01-01T10:20:00Z", "day": "2026-01-01"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2\nb: 3", "f:2 is not valid YAML"),
        ("a: b: c", "f:1 is not valid YAML"),
        ("- a\n- b", "f:1 is not an object but a list"),
        ("just words", "is not an object but a str"),
        ("a: !!python/object:os.system x", "is not valid YAML"),
        ("&a {b: *a}", "is not valid YAML"),
    ],
)
def test_what_is_no_object_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(exit_codes.CliError) as caught:
        manifests.parse(text, "f")
    assert said in caught.value.message
    assert caught.value.code == exit_codes.INVALID


def test_a_folder_gives_its_manifests_in_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json"):
        (tmp_path / name).write_text("metadata: {name: NAME}".replace("NAME", name[0]))
    (tmp_path / "notes.txt").write_text("no: object")
    found = manifests.read_all((str(tmp_path),))
    assert [document.data["metadata"]["name"] for document in found] == ["a", "b", "c"]


BAD = [
    ("  framwork: torch\n", 4, 'unknown field "spec.framwork": did you mean framework?'),
    ("  priority: 5000\n", 4, "spec.priority: Invalid value: 5000"),
    ("  framework: torhc\n", 4, 'did you mean "torch"?'),
]


@pytest.mark.parametrize(("line", "below", "said"), BAD)
def test_apply_names_file_line_field_and_remedy_without_a_server(
    tmp_path: Path, line: str, below: int, said: str
) -> None:
    lines = RUN.splitlines(keepends=True)
    path = tmp_path / "run.yaml"
    path.write_text("".join([*lines[:below], line, *lines[below:]]))
    result = invoke("apply", "-f", path)
    assert result.code == exit_codes.INVALID
    assert f"{path}:{below + 1}: " in result.err
    assert said in result.err
    assert "nothing was sent" in result.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RUN.replace("kind: Run", "kind: Rnu"), "Did you mean 'Run'?"),
        (RUN.replace("windlass.dev/v1alpha1", "windlass.dev/v1"), "Write apiVersion: windlass"),
        (RUN.replace("kind: Run\n", ""), "the object has no kind"),
        (RUN.replace("{name: train}", "{}"), "metadata.name"),
    ],
)
def test_apply_says_what_is_wrong_with_the_head_of_an_object(text: str, said: str) -> None:
    result = invoke("apply", "-f", "-", stdin=text)
    assert result.code == exit_codes.INVALID
    assert said in result.err


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    result = invoke("apply", "-f", tmp_path / "nope.yaml")
    assert result.code == exit_codes.NOT_FOUND


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            RUN.replace("spec:", "spec:\n  priority: 10\n  queue: a\n  priority: 20"),
            ["spec.priority is given twice, on lines 5 and 7"],
        ),
        (
            "a: 1\nb: {c: 1, c: 2}\na: 2\n",
            ["b.c is given twice, on line 2", "a is given twice, on lines 1 and 3"],
        ),
        ('{"kind": "Run",\n "kind": "Queue"}', ["kind is given twice, on lines 1 and 2"]),
        ("roles:\n- x: 1\n- y: 1\n  y: 2\n", ["roles[1].y is given twice, on lines 3 and 4"]),
        ("a: 1\n---\nb: 1\nb: 2\n", ["b is given twice, on lines 3 and 4"]),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_both_lines(text: str, told: list[str]) -> None:
    with pytest.raises(exit_codes.CliError) as caught:
        manifests.parse(text, "f.yaml")
    assert caught.value.message == f"f.yaml: {'; '.join(told)}."
    assert caught.value.code == exit_codes.INVALID


def test_merged_and_repeated_parts_are_no_duplicates() -> None:
    text = "base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nthree: *b\n"
    (document,) = manifests.parse(text, "f")
    assert document.data["one"] == {"x": 2}


def test_one_object_in_two_documents_is_refused_before_anything_is_sent() -> None:
    other = RUN.replace("name: train", "name: train, namespace: default")
    (first, second, third) = manifests.parse(RUN + "---\n" + other + "---\n" + RUN, "f.yaml")
    manifests.refuse_repeated([(Run, first), (Run, second)], "team-a")
    for twice, namespace in (((first, second), "default"), ((first, third), "team-a")):
        with pytest.raises(exit_codes.CliError) as caught:
            manifests.refuse_repeated([(Run, each) for each in twice], namespace)
        assert caught.value.message.startswith("run/train is described twice, in f.yaml:3 and in ")
