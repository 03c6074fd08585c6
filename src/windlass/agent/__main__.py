"""`python -m windlass.agent`; with `cluster`, on a node of Kubernetes."""

import sys

if sys.argv[1:2] == ["cluster"]:
    from windlass.agent import cluster

    sys.exit(cluster.main(sys.argv[2:]))

from windlass.agent.main import main

sys.exit(main())
