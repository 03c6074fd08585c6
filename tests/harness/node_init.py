"""The first process of a node that is made of namespaces: what it holds goes when it is killed.

`kubelet` starts it under unshare (mounts, processes). It gives the node folders of its own where a
machine has them, says that it is ready, and waits. It also collects the processes that
containers leave behind: the kernel does, for a process that ignores SIGCHLD.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

OWN = ("/var/lib", "/var/log", "/run")
"""What a node does not share with the machine, and so not with other nodes of it."""


def main(folder: Path) -> None:
    # What kubelet mounts must reach containers, and nothing of it the machine.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for path in OWN:
        own = folder / path.strip("/").replace("/", "-")
        own.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", own, path], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    (folder / "ready").touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
