"""`python -m ropewalk` is the `ropewalk` command."""

import sys

from ropewalk.cli.main import main

sys.exit(main())
