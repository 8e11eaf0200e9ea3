"""The product can be read in any order: files and folders are small, and no module needs one that needs it."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

CHECKOUT = Path(__file__).parents[2]
MOST_LINES = 400
MOST_MODULES = 16


def list_modules() -> list[Path]:
    return [file for folder in ("engine", "tables", "jobs") for file in (CHECKOUT / folder).rglob("*.py")]


def test_no_file_is_long() -> None:
    lengths = {str(file.relative_to(CHECKOUT)): len(file.read_text().splitlines()) for file in list_modules()}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_folder_has_many_modules() -> None:
    counts = Counter(file.parent for file in list_modules() if file.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_imports_have_no_circle() -> None:
    """Imports for types alone and imports within functions count, too."""
    graph = grimp.build_graph("lakemq", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
