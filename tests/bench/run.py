"""All benchmarks, as a table and as JSON. `--quick` is a smoke run whose figures mean nothing."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import clients
import far_delays
import final
import followers
import latency
import merging
import quality
import schemas
import sql
import store_costs
import stores
import structured_streaming
import take_over
import with_spark
import without_jvm
from figures import Figure
from rich.console import Console
from rich.table import Table

GROUPS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "spark": lambda quick: with_spark.run(100_000 if quick else 2_000_000, 1 if quick else 5),
    "python": lambda quick: without_jvm.run(100_000 if quick else 2_000_000),
    "clients": lambda quick: clients.run(*((20_000, 5, 1) if quick else (200_000, 100, 7))),
    "latency": lambda quick: latency.run(60 if quick else 400, 80 if quick else 1000, 8, 2 if quick else 10),
    "followers": lambda quick: followers.run(*((20, 1) if quick else (200, 5))),
    "take-over": lambda quick: take_over.run(*((1, 100) if quick else (5, 10_000))),
    "final": lambda quick: final.run(*((80_000, 1) if quick else (8_000_000, 5))),
    "far-delays": lambda quick: far_delays.run(100_000 if quick else 10_000_000),
    "structured-streaming": lambda quick: structured_streaming.run(*((100_000, 1) if quick else (1_000_000, 3))),
    "merging": lambda quick: merging.run(500 if quick else 20_000),
    "quality": lambda quick: quality.run(100_000 if quick else 1_000_000, 1 if quick else 5),
    "sql": lambda quick: sql.run(*((20_000, 20) if quick else (1_000_000, 1_000))),
    "schemas": lambda quick: schemas.run(*((10_000, 1) if quick else (300_000, 5))),
}

ON_REQUEST: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "stores": lambda quick: stores.run(*((20, 5, 16, 1) if quick else (200, 60, 300, 3))),
    "store-costs": lambda quick: store_costs.run(5 if quick else 60),
}
"""Benchmarks that need a server of S3, which Go builds once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        choices=[[], *GROUPS, *ON_REQUEST],
        default=list(GROUPS),
        metavar="GROUP",
        help=f"{', '.join(GROUPS)}; and if asked for by name, {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--json", type=Path, default=Path("bench-out/bench.json"))
    options = parser.parse_args()
    console = Console()
    figures: list[Figure] = []
    for group in options.groups:
        for figure in (GROUPS | ON_REQUEST)[group](options.quick):
            console.print(_line(figure), highlight=False)
            figures.append(figure)
    console.print(_table(figures))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
    options.json.write_text(json.dumps({"machine": machine, "figures": [f.as_row() for f in figures]}, indent=1))
    console.print(f"written to {options.json}")


def _line(f: Figure) -> str:
    reached = "reached" if f.reached else "MISSED"
    return f"{reached:>8}  {f.name}: {f.value:.3g} {f.unit} (must be {f.sense} {f.target:g})"


def _table(figures: list[Figure]) -> Table:
    table = Table("what", "measured", "must be", "", "note")
    for f in figures:
        reached = "reached" if f.reached else "MISSED"
        table.add_row(f.name, f"{f.value:.3g} {f.unit}", f"{f.sense} {f.target:g}", reached, f.note)
    return table


if __name__ == "__main__":
    main()
