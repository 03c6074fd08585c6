"""Options of an installation, and what an upgrade makes of them."""

import pytest

from windlass.install.options import Options, OptionsError
from windlass.version import VERSION

DIGEST = "registry.example:5000/windlass@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("registry.example/windlass:0.0.9", f"registry.example/windlass:{VERSION}"),
        ("registry.example:5000/windlass:0.0.9", f"registry.example:5000/windlass:{VERSION}"),
        ("registry.example:5000/windlass", f"registry.example:5000/windlass:{VERSION}"),
        ("windlass", f"windlass:{VERSION}"),
        (DIGEST, DIGEST),
    ],
)
def test_the_tag_of_another_version_becomes_this_one(before: str, after: str) -> None:
    assert Options.read({"version": "0.0.9", "image": before}).image == after
    assert Options.read({"version": VERSION, "image": before}).image == before


def test_an_upgrade_asks_for_the_digest_of_the_new_version() -> None:
    known = {"version": "0.0.9", "image": DIGEST}
    with pytest.raises(OptionsError, match=r"--image: .* give the digest of version"):
        Options.check_upgrade(known)
    Options.check_upgrade(known, image=DIGEST)
    Options.check_upgrade(known | {"version": VERSION})
    Options.check_upgrade(known | {"image": "windlass:1"})


@pytest.mark.parametrize(
    "folders", ["data", "/data/../etc", "/data,", "/", "//data", "/a b", "/a/."]
)
def test_folders_of_nodes_are_absolute_and_plain(folders: str) -> None:
    with pytest.raises(OptionsError, match=r"--host-mounts .* absolute paths"):
        Options(host_mounts=folders)
    assert Options(host_mounts="/data,/scratch/a").host_mounts == "/data,/scratch/a"
