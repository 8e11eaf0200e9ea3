"""The product can be read in any order: files and functions are not long, and no module needs one that needs it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

CHECKOUT = Path(__file__).parents[2]
MOST_LINES_OF_FILES = 700
MOST_LINES_OF_FUNCTIONS = 60
"""Without signature and docstring."""


@pytest.mark.slow
def test_files_and_functions_are_not_long() -> None:
    long = []
    for file in [file for folder in ("engine", "tables", "jobs") for file in (CHECKOUT / folder).rglob("*.py")]:
        name, source = str(file.relative_to(CHECKOUT)), file.read_text(encoding="utf-8")
        if len(source.splitlines()) > MOST_LINES_OF_FILES:
            long.append(name)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1:2] if ast.get_docstring(node, clean=False) else node.body
                lines = (node.end_lineno or 0) - first[0].lineno + 1 if first else 0
                long += [f"{name}: {node.name}"] if lines > MOST_LINES_OF_FUNCTIONS else []
    assert long == []


def test_imports_have_no_circle() -> None:
    """Imports for types alone and imports within functions count, too."""
    graph = grimp.build_graph("lakemq", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
