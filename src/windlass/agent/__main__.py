"""`python -m windlass.agent`; with `cluster`, the agent of a Kubernetes node."""

import sys

if sys.argv[1:2] == ["cluster"]:
    from windlass.agent.daemonset import main as daemonset_main

    sys.exit(daemonset_main.main(sys.argv[2:]))

from windlass.agent.main import main

sys.exit(main())
