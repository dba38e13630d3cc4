"""`python -m fedstats_app.cli`, where the command `fedstats` is not installed."""

import sys

from fedstats_app.cli import main

sys.exit(main())
