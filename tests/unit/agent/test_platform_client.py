"""What a pod asks the server for: servers go away and come back, which is no fault of a run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.agent.init import platform_client


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(platform_client.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(platform_client.time, "sleep", self._pass)

    def _pass(self, seconds: float) -> None:
        self.now += seconds


def server_back_at(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, moment: float, answer: Any
) -> platform_client.PlatformClient:
    def ask(_: platform_client.PlatformClient, path: str) -> Any:
        if clock.now < moment:
            raise ConnectionRefusedError(111, "Connection refused")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(platform_client.PlatformClient, "_json", ask)
    return platform_client.PlatformClient("https://127.0.0.1:1", "", "red", Path("token"))


BOOK = {"complete": True, "members": {"worker": ["10.0.0.1"]}}


def test_a_server_that_is_away_for_minutes_is_waited_for(monkeypatch):
    clock = Clock(monkeypatch)
    server = server_back_at(monkeypatch, clock, 240, BOOK)
    assert server.addresses("job", 1, {"worker": 1}, 30) == BOOK["members"]
    assert 240 <= clock.now < 250


def test_a_server_that_stays_away_is_given_up_with_the_reason(monkeypatch):
    server = server_back_at(monkeypatch, Clock(monkeypatch), float("inf"), BOOK)
    with pytest.raises(platform_client.RejectedError, match=r"not known.*refused"):
        server.addresses("job", 1, {"worker": 1}, 30)


def test_a_refusal_is_not_asked_again(monkeypatch):
    clock = Clock(monkeypatch)
    server = server_back_at(monkeypatch, clock, 0, platform_client.RejectedError("it is not yours"))
    with pytest.raises(platform_client.RejectedError, match="it is not yours"):
        server.addresses("job", 1, {"worker": 1}, 30)
    assert clock.now == 0


def test_members_that_never_come_are_named_in_time(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(
        platform_client.PlatformClient,
        "_json",
        lambda *_: (clock._pass(20), {"members": {"worker": [""]}})[1],
    )
    server = platform_client.PlatformClient("https://127.0.0.1:1", "", "red", Path("token"))
    with pytest.raises(platform_client.LateError, match="worker 0"):
        server.addresses("job", 1, {"worker": 1}, 60)
