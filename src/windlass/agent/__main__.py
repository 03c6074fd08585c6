"""`python -m windlass.agent`"""

import sys

from windlass.agent.main import main

sys.exit(main())
