"""Settings shared by all tests; servers come from `tests.harness.plugin`."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# No test may read or change the machine's own Kubernetes or Windlass configuration.
for _variable in ("KUBECONFIG", "WINDLASS_STATE"):
    os.environ.pop(_variable, None)

# Shells start what runs in the background with Ctrl-C ignored, and children inherit that: tests
# that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The normal run tries the same cases every time: whoever changes something sees what the change
# did. New cases, and the blob that repeats a failure, are for `make soak`.
# No deadlines: how long a case takes by the clock says more about who else is on the machine.
settings.register_profile("same-cases", derandomize=True, database=None, deadline=None)
settings.register_profile("new-cases", print_blob=True, deadline=None)
settings.load_profile("new-cases" if os.environ.get("WINDLASS_SOAK") == "1" else "same-cases")
