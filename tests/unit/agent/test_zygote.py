"""The process that forks shims, killed and closed at bad moments."""

import asyncio
import os
import signal

from windlass.agent.runtime.containers import Container, ContainerConfig
from windlass.agent.runtime.procfs import descendants
from windlass.agent.runtime.zygote import Zygote

TRUE = ContainerConfig(["sh", "-c", "exit 0"], {"PATH": os.environ["PATH"]}, "/")


async def ended(container: Container) -> int:
    async with asyncio.timeout(30):
        await container.ended()
    return container.observe().exit_code


async def test_one_that_was_killed_is_replaced(tmp_path):
    zygote = Zygote()
    zygote.warm()
    os.kill(zygote.pid, signal.SIGKILL)
    container = Container(tmp_path, "c")
    await container.start(TRUE, zygote)
    assert await ended(container) == 0
    zygote.close()


async def test_many_at_once(tmp_path):
    zygote = Zygote()
    all_of_them = [Container(tmp_path, f"c{number}") for number in range(20)]
    await asyncio.gather(*(container.start(TRUE, zygote) for container in all_of_them))
    assert [await ended(container) for container in all_of_them] == [0] * 20
    zygote.close()


async def test_it_ends_with_its_agent_and_shims_do_not(tmp_path):
    zygote = Zygote()
    container = Container(tmp_path, "c")
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    await container.start(ContainerConfig(["sh", "-c", script], dict(TRUE.env), "/"), zygote)
    pid = zygote.pid
    zygote.close()
    assert pid not in descendants(os.getpid())
    assert container.observe().state == "running"
    (tmp_path / "go").touch()
    assert await ended(container) == 0


async def test_a_large_environment_passes(tmp_path):
    zygote = Zygote()
    env = {**TRUE.env, **{f"V{number}": "x" * 1000 for number in range(900)}}
    container = Container(tmp_path, "c")
    await container.start(ContainerConfig(["sh", "-c", "test ${#V899} = 1000"], env, "/"), zygote)
    assert await ended(container) == 0
    zygote.close()
