"""The sidecar of a pod whose run declares outputs: sends their files to the server.

`PYTHON -I -m windlass.agent.init.collect_outputs`, in the sidecar that `control.runs.pod_template`
adds. It runs as the job's user beside the command, collects when the program reports a checkpoint,
and once more when the node ends it with SIGTERM, which is after the command has ended. The server
knows how that ended.

Content goes first, each file as a blob that is named by its digest, then the list of files, then
one request that publishes the list. So a collection that is interrupted at any moment is repeated
without sending again what is there, and readers see the old list or the new one. Standard library
only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from windlass.agent.init import output_files, platform_client
from windlass.agent.init.output_files import Found

_TICK = 1.0
_ASKED = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
"""Seconds after the start at which it asks whether the command has ended: a signal that came before
the process was ready is lost."""
_HASHED = 1 << 20
_TRIES = 3
_ENDED_SECONDS = 10.0
"""How long it waits until the server knows how the command ended."""


def main() -> int:
    # Blocked first: a signal that comes now stays until it is waited for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, lambda *_: None)
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    config = json.loads(os.environ["WINDLASS_COLLECT"])
    collector = Collector(root, config, platform_client.PlatformClient.from_environment(root))
    collector.run()
    return 0


class Collector:
    """Collects the outputs of one replica."""

    def __init__(
        self, root: Path, config: dict[str, Any], server: platform_client.PlatformClient
    ) -> None:
        self._root = root
        self._run: str = config["run"]
        self._work: str = config["work"]
        self._outputs: list[dict[str, Any]] = config["outputs"]
        self._server = server
        self._digests: dict[tuple[int, ...], str] = {}
        """By stamp of a file: its digest, already sent."""
        self._checkpoint = self._reported()

    def run(self) -> None:
        """Returns when the outputs of the end are published."""
        started = time.monotonic()
        asked = 0
        while True:
            if signal.sigtimedwait({signal.SIGTERM}, _TICK) is not None:
                break
            if asked < len(_ASKED) and time.monotonic() - started >= _ASKED[asked]:
                asked += 1
                if self._ended() is not None:
                    break
            self._look_for_checkpoint()
        self._collect("end" if self._exit_code() == 0 else "failure")

    def _look_for_checkpoint(self) -> None:
        reported = self._reported()
        if reported and reported != self._checkpoint:
            self._checkpoint = reported
            if any("checkpoint" in each["when"] for each in self._outputs):
                self._collect("checkpoint")

    def _reported(self) -> str:
        """When the program last reported a checkpoint; "" if never."""
        try:
            with open(self._root / "run" / "progress.json", "rb") as file:
                return str(json.loads(file.read(1 << 16)).get("checkpoint") or "")
        except (OSError, ValueError, AttributeError):
            return ""

    def _exit_code(self) -> int | None:
        """The command's exit code; None if nothing says that it ended well."""
        deadline = time.monotonic() + _ENDED_SECONDS
        while (ended := self._ended()) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return ended

    def _ended(self) -> int | None:
        try:
            code = self._server.own_pod(self._run).get("exitCode")
        except platform_client.RejectedError:
            return None
        return code if isinstance(code, int) else None

    def _collect(self, moment: str) -> None:
        try:
            self._publish(moment)
        except (platform_client.RejectedError, output_files.TooManyError, OSError) as problem:
            _log(f"outputs are not collected: {problem}")
            self._report(moment, str(problem))

    def _report(self, moment: str, message: str) -> None:
        try:
            body = {"moment": moment, "message": message[:1000]}
            self._server.publish_outputs(self._run, body)
        except platform_client.RejectedError as problem:
            _log(f"the server does not take the reason: {problem}")

    def _publish(self, moment: str) -> None:
        wanted = {moment} if moment == "checkpoint" else {moment, "checkpoint"}
        paths = ["/windlass/outputs"]
        paths += [each["path"] for each in self._outputs if wanted & set(each["when"])]
        found = output_files.find(self._root, self._work, paths)
        size = sum(each.size for each in found)
        self._server.check_outputs(self._run, size)
        listed, missing = [], []
        for each in found:
            digest = "" if each.target is not None else self._sent(each)
            if digest is None:
                missing.append(each.path)
            else:
                listed.append(each.described(digest))
        manifest = json.dumps({"files": listed}, sort_keys=True).encode()
        digest = _digest_of(manifest)
        self._server.send_blob(self._run, digest, len(manifest), lambda at: manifest[at:])
        message = f"these changed while they were collected: {', '.join(missing[:5])}"
        body = {"moment": moment, "manifest": digest, "message": message if missing else ""}
        self._server.publish_outputs(self._run, body)
        _log(f"collected {len(listed)} files, {sum(each.get('size', 0) for each in listed)} bytes")

    def _sent(self, file: Found) -> str | None:
        """The digest of a file whose content the server has; None if it cannot be read, or changes
        all the time."""
        for _ in range(_TRIES):
            if (known := self._digests.get(file.stamp)) is not None:
                return known
            try:
                with open(os.open(file.real, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
                    digest = _hashed(content, file.size)
                    if digest is None:
                        return None

                    def piece(offset: int, content: Any = content) -> bytes:
                        content.seek(offset)
                        left = max(0, file.size - offset)
                        return bytes(content.read(min(platform_client.PIECE, left)))

                    self._server.send_blob(self._run, digest, file.size, piece)
            except platform_client.ChangedError:
                continue
            except OSError:
                return None
            self._digests[file.stamp] = digest
            return digest
        return None


def _hashed(content: Any, size: int) -> str | None:
    """The digest of the first `size` bytes; None if there are fewer."""
    seen = hashlib.sha256()
    while size:
        piece = content.read(min(size, _HASHED))
        if not piece:
            return None
        seen.update(piece)
        size -= len(piece)
    return f"sha256:{seen.hexdigest()}"


def _digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _log(text: str) -> None:
    print(f"windlass: {text}", flush=True)  # noqa: T201 - the log of the container


if __name__ == "__main__":
    sys.exit(main())
