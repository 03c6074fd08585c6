"""A store in whose writes the process dies."""

from __future__ import annotations


class Crash(Exception):
    """The process died here."""


class Fragile:
    """The real store; dies at a chosen write, before or after it was done."""

    def __init__(self, store) -> None:
        self._store = store
        self.writes_left = 10**9
        self.after = False
        for name in ("get", "list", "watch"):
            setattr(self, name, getattr(store, name))

    def __getattr__(self, name):
        real = getattr(self._store, name)

        async def write(*args, **kwargs):
            self.writes_left -= 1
            if self.writes_left == 0 and not self.after:
                raise Crash
            answer = await real(*args, **kwargs)
            if self.writes_left == 0:
                raise Crash
            return answer

        return write
