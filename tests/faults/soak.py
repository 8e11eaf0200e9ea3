"""The chaos run for as long as you like: `python -m faults.soak --seconds 3600 --seed 7`, or `make soak`."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from faults.chaos import Chaos


def main() -> None:
    """Print the figures once a minute and in the end. If an invariant is broken, all files are kept for a look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long processes are stopped and killed")
    parser.add_argument("--seed", type=int, help="of the schedule of faults; random by default")
    parser.add_argument("--folder", type=Path, help="where everything is; a temporary folder by default")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="lakemq-soak-", dir=arguments.folder))
    print(f"seed {seed}, {arguments.seconds:g} s, in {folder}", flush=True)
    try:
        figures = Chaos(folder, seed, arguments.seconds).run(lambda figures: print(figures, flush=True))
    except AssertionError as error:
        sys.exit(f"{error}")
    print(f"{figures}; every invariant holds")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
