"""For programs that run as a job: what other runs of the team saved. Standard library of Python 3.8
or newer only."""

from __future__ import annotations

import os
from typing import Any

from .saving import PICKLED

_FOLDER = "/windlass/outputs/"
_SECONDS = 60.0


def is_possible() -> bool:
    """Whether this process is a job that may read outputs."""
    return bool(os.environ.get("WINDLASS_OUTPUTS_API"))


def load(run: str, name: str) -> Any:
    """What `windlass.save(obj, name)` saved in a run of the same team; unpickles it."""
    if not is_possible():
        raise RuntimeError(
            "outputs of other runs can be loaded in a job that collects some itself: submit it "
            "with --output PATH, or outputs=[...] in Python"
        )
    import hashlib
    import json
    import pickle
    import urllib.parse

    found = json.loads(_get("runs/{}/outputs".format(urllib.parse.quote(run, safe=""))))
    wanted = {_FOLDER + name + PICKLED: True, _FOLDER + name: False}
    for item in found["items"]:
        for file in item["files"]:
            if file["path"] in wanted and file.get("digest"):
                path = "runs/{}/outputs/blobs/{}".format(
                    urllib.parse.quote(run, safe=""), file["digest"]
                )
                data = _get(path)
                if "sha256:" + hashlib.sha256(data).hexdigest() != file["digest"]:
                    raise OSError("an output was not sent whole; try again")
                # Of the same team, as the documentation says.
                return pickle.loads(data) if wanted[file["path"]] else data  # noqa: S301
    raise LookupError(
        f"run {run} has saved no {name!r}; list what it saved: windlass outputs list {run}"
    )


def _get(path: str) -> bytes:
    # Imported here: most jobs load nothing, and TLS is slow to import.
    import json
    import ssl
    import urllib.error
    import urllib.request

    # Read for each request: tokens are renewed before they expire.
    with open(os.environ["WINDLASS_OUTPUTS_TOKEN"]) as file:
        token = file.read().strip()
    url = "{}/{}".format(os.environ["WINDLASS_OUTPUTS_API"], path)
    if not url.startswith("https://"):
        raise RuntimeError("WINDLASS_OUTPUTS_API was changed: it must begin with https://")
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})  # noqa: S310
    trust = ssl.create_default_context(cadata=os.environ.get("WINDLASS_OUTPUTS_AUTHORITY") or None)
    try:
        with urllib.request.urlopen(request, context=trust, timeout=_SECONDS) as answer:  # noqa: S310
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as problem:
        try:
            message = json.loads(problem.read(65536))["message"]
        except (ValueError, KeyError, TypeError):
            message = str(problem)
        raise LookupError(message) from None
