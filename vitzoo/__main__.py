"""`python -m vitzoo`."""

import sys

from vitzoo.cli.main import main

sys.exit(main())
