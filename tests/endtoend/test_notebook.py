"""The SDK as a notebook uses it: cells of a real Jupyter kernel, whose own event loop is busy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.endtoend.engines import Embedded, only_on_the_machine

PATIENCE = 120.0


class Notebook:
    """Cells, one after the other; a cell that fails fails the test with its traceback."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def cell(self, code: str) -> str:
        """What the cell printed."""
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            assert message["msg_type"] != "error", "\n".join(content.get("traceback", ()))
            printed.append(content.get("text", ""))

        self._client.execute_interactive(code, timeout=PATIENCE, output_hook=hear)
        return "".join(printed)


@pytest.fixture
def notebook(engine: Embedded) -> Iterator[Notebook]:
    only_on_the_machine(engine, "a worker there needs the very Python of the notebook in its image")
    manager = KernelManager()
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        way = {name: str(value) for name, value in engine.way.items()}
        made = Notebook(client)
        made.cell(f"import windlass; client = windlass.Client(**{json.dumps(way)})")
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_functions_that_cells_define_run_elsewhere(notebook: Notebook) -> None:
    notebook.cell("factor = 3\ndef times(n):\n    return n * factor")
    notebook.cell("pool = windlass.Executor(2, client=client, cpus='50m', memory='64Mi')")
    assert notebook.cell("print(list(pool.map(times, range(5))))") == "[0, 3, 6, 9, 12]\n"
    # A cell that is changed and run again: the new function goes along.
    notebook.cell("factor = 5")
    assert notebook.cell("print(pool.submit(times, 2).result(60))") == "10\n"
    notebook.cell("pool.shutdown()")


def test_a_cell_may_await_and_reads_what_a_run_prints(notebook: Notebook) -> None:
    notebook.cell("handle = client.run(['echo', 'from afar'], cpus='50m', memory='64Mi')")
    assert notebook.cell("print(*[line.text for line in handle.logs(follow=True)])") == (
        "from afar\n"
    )
    # The notebook's loop is free while a run is waited for in a thread, and top-level await works.
    waited = "import asyncio\nended = await asyncio.to_thread(handle.wait, 60)"
    notebook.cell(waited)
    assert notebook.cell("print(ended.status.phase)") == "Succeeded\n"
