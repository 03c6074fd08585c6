"""`python -m windlass.control scheduler|controllers`."""

import sys

from windlass.control.main import main

sys.exit(main())
