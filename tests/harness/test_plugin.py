"""Which tests one worker runs together, so that no two start the same servers."""

from __future__ import annotations

import pytest

from tests.harness import plugin


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/embedded/test_cli_users.py::test_a[x]", "tests/embedded/test_cli_users.py"),
        ("tests/unit/server/test_app.py::test_b", "tests/unit/server/test_app.py"),
        ("tests/endtoend/test_sdk.py::test_c[embedded]", "tests/endtoend/test_sdk.py"),
        ("tests/endtoend/test_sdk.py::test_c[kubernetes]", "real nodes"),
        ("tests/harness/test_kubelet.py::test_d", "real nodes"),
        ("tests/faults/test_kill.py::test_e", "tests/faults/test_kill.py::test_e"),
    ],
)
def test_tests_that_share_servers_are_one_group(nodeid: str, group: str) -> None:
    assert plugin.group_of(nodeid) == group
