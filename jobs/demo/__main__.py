"""`python -m lakemq.jobs.demo`: the tour."""

import sys

from lakemq.engine.namespace.extras import needs

with needs("spark"), needs("report"), needs("sql"):
    from lakemq.jobs.demo.tour import main

if __name__ == "__main__":
    sys.exit(main())
