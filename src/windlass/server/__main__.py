"""`python -m windlass.server` on one machine; `python -m windlass.server cluster` on a cluster."""

import sys

if sys.argv[1:2] == ["cluster"]:
    from windlass.server.cluster_app import main as cluster

    sys.exit(cluster(sys.argv[2:]))

from windlass.server.main import main

sys.exit(main())
