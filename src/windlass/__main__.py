"""The program `windlass`, and `python -m windlass`."""

from __future__ import annotations

import signal


def main() -> None:
    # Until everything is loaded Ctrl-C ends us as it ends any program: without a traceback.
    asked = signal.getsignal(signal.SIGINT)
    if asked is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from windlass.cli.main import main as run

    signal.signal(signal.SIGINT, asked)
    run()


if __name__ == "__main__":
    main()
