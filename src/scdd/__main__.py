"""`python -m scdd` is `scdd`."""

import sys

from scdd.cli.main import main

sys.exit(main())
