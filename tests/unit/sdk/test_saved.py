"""Outputs as a whole: which folder a file is placed into."""

from __future__ import annotations

from windlass.sdk.files import saved
from windlass.sdk.files.collected import OutputFile


class Counted(OutputFile):
    """Counts comparisons: fifty thousand files must not be compared with each other."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return self is other

    __hash__ = None


def a_file(path: str) -> OutputFile:
    return Counted("worker-0", path, 1, "sha256:" + "0" * 64, 0, 0o644)


def test_each_file_has_one_folder():
    paths = ["model.pt", "out/a", "/windlass/outputs/x", "/windlass/outputs/d/y", "/data/z"]
    groups = saved._by_base([a_file(path) for path in paths])
    assert {base: [each.path for each in files] for base, files in groups.items()} == {
        "": ["model.pt", "out/a"],
        "/windlass/outputs": ["/windlass/outputs/x", "/windlass/outputs/d/y"],
        "/": ["/data/z"],
    }
    assert Counted.compared == 0
