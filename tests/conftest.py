"""Settings shared by all tests; servers come from `tests.harness.plugin`."""

from __future__ import annotations

import os
import random
import signal

import pytest
from hypothesis import HealthCheck, settings

# No test may read or change the machine's own Kubernetes or Windlass configuration.
for _variable in ("KUBECONFIG", "WINDLASS_STATE"):
    os.environ.pop(_variable, None)

# Shells start what runs in the background with Ctrl-C ignored, and children inherit that: tests
# that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The normal run tries the same cases every time, so that a failure follows from a change. New cases
# are for `make soak`; it names the seed before the first of them.
# No deadlines and no complaints about slow cases: how long one takes by the clock says more about
# other load of the machine.
_SOAK = os.environ.get("WINDLASS_SOAK") == "1"
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
settings.register_profile(
    "same-cases",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.register_profile("new-cases", print_blob=True, deadline=None, suppress_health_check=_SLOW)
settings.load_profile("new-cases" if _SOAK else "same-cases")
if _SOAK:
    os.environ.setdefault("WINDLASS_SEED", str(random.SystemRandom().randrange(1 << 32)))


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if _SOAK and terminal is not None:
        terminal.write_line(f"WINDLASS_SEED={os.environ['WINDLASS_SEED']} repeats this campaign")
