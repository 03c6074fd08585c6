"""Files with objects: what is read, on which line it stands, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli import exits, manifests

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
    with pytest.raises(exits.CliError) as caught:
        manifests.parse(text, "f")
    assert said in caught.value.message
    assert caught.value.code == exits.INVALID


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
    assert result.code == exits.INVALID
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
    assert result.code == exits.INVALID
    assert said in result.err


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    result = invoke("apply", "-f", tmp_path / "nope.yaml")
    assert result.code == exits.NOT_FOUND
