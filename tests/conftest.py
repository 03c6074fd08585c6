"""Settings shared by all tests; servers come from `tests.harness.plugin`."""

from __future__ import annotations

import os

# No test may read or change the machine's own Kubernetes or Windlass configuration.
for _variable in ("KUBECONFIG", "WINDLASS_STATE"):
    os.environ.pop(_variable, None)
