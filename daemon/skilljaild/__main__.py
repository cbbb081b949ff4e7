"""`python -m skilljaild`."""

import sys

from skilljaild.cli import main

sys.exit(main())
