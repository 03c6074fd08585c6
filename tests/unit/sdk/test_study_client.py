"""Requests of the driver of a study to a server that is away or overloaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from windlass.sdk.tuning.study_client import StudyClient
from windlass.sdk.tuning.trials import Trial
from windlass.store import errors


class Server:
    """Refuses its first request, then stores trials."""

    def __init__(self, problem):
        self._problems = [problem]
        self.sizes = []

    async def request(self, _method, _path, body=None):
        if self._problems:
            raise self._problems.pop()
        self.sizes.append(len(body["trials"]))
        return {}


@pytest.mark.parametrize("problem", [errors.AnswerLost("lost"), errors.TooManyRequests("later")])
async def test_a_refusal_that_passes_does_not_end_the_study(problem):
    server = Server(problem)
    client = SimpleNamespace(namespace="a", request=server.request)
    await StudyClient(client, "s").store([Trial(number, {}) for number in range(100)])
    assert server.sizes == [40, 40, 20]
