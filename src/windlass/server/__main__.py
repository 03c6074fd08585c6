"""`python -m windlass.server`."""

import sys

from windlass.server.main import main

sys.exit(main())
