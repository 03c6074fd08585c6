"""The process that forks shims, killed and closed at bad moments."""

import asyncio
import os
import signal

from windlass.agent.containers import Container, Order
from windlass.agent.nursery import Nursery
from windlass.agent.procfs import descendants

TRUE = Order(["sh", "-c", "exit 0"], {"PATH": os.environ["PATH"]}, "/")


async def ended(container: Container) -> int:
    async with asyncio.timeout(30):
        await container.ended()
    return container.observe().exit_code


async def test_one_that_was_killed_is_replaced(tmp_path):
    nursery = Nursery()
    nursery.warm()
    os.kill(nursery.pid, signal.SIGKILL)
    container = Container(tmp_path, "c")
    await container.start(TRUE, nursery)
    assert await ended(container) == 0
    nursery.close()


async def test_many_at_once(tmp_path):
    nursery = Nursery()
    all_of_them = [Container(tmp_path, f"c{number}") for number in range(20)]
    await asyncio.gather(*(container.start(TRUE, nursery) for container in all_of_them))
    assert [await ended(container) for container in all_of_them] == [0] * 20
    nursery.close()


async def test_it_ends_with_its_agent_and_shims_do_not(tmp_path):
    nursery = Nursery()
    container = Container(tmp_path, "c")
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    await container.start(Order(["sh", "-c", script], dict(TRUE.env), "/"), nursery)
    pid = nursery.pid
    nursery.close()
    assert pid not in descendants(os.getpid())
    assert container.observe().state == "running"
    (tmp_path / "go").touch()
    assert await ended(container) == 0


async def test_a_large_environment_passes(tmp_path):
    nursery = Nursery()
    env = {**TRUE.env, **{f"V{number}": "x" * 1000 for number in range(900)}}
    container = Container(tmp_path, "c")
    await container.start(Order(["sh", "-c", "test ${#V899} = 1000"], env, "/"), nursery)
    assert await ended(container) == 0
    nursery.close()
