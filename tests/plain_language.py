"""Measure how plainly the code and the pages are written, and fail above the bounds. `make lint` runs it.

    python tests/plain_language.py             # the figures, and the places of every figure that is above its bound
    python tests/plain_language.py --show names

The figures are a thermometer. Rewrite the place so that a stranger understands it; do not only swap the word.
docs/contributing.md has the rules, with examples.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
FOLDERS = ("lakemq", "engine", "tables", "jobs", "conf", "examples", "pyspark_lakemq")

# fmt: off
VAGUE_NAMES = frozenset(
    {
        "one", "told", "given", "mine", "known", "found", "asked", "wanted", "said", "seen", "held", "left", "taken",
        "kept", "meant", "heard", "who", "whose", "what", "others", "ours", "theirs",
    }
)
# fmt: on
"""Variables that do not say what they hold."""

# fmt: off
PARTICIPLES = frozenset(
    {
        "told", "given", "known", "found", "held", "kept", "left", "said", "seen", "sent", "taken", "meant", "heard",
        "written", "shown", "begun", "gone", "lost", "drawn", "spoken", "put", "read",
    }
)
# fmt: on
VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "put", "read", "seed", "shed", "speed"})
"""Names of one word that look like participles and are verbs."""

OPENING = re.compile(
    r"(What|Who|Whose|Whom|Where|When|Which|Those|That|These|This|It|They|Them|Nobody|None|Of|Until|Whether|As|With|"
    r"From|By|Under|Also|Such|Like|One|Not|No|Or|And|But|To)\b"
)
"""First words of docstrings that do not say what the function does."""

PHRASES = re.compile(
    r"\b(nobody|somebody|whoever|whatever|anew|for ever|perhaps|thereby|thereof|whereof|of which|of whom|by which|"
    r"is none|are none|is no [a-z]+|are no [a-z]+|has none|bears?|as it is|as they are|of that|of those|is to be|"
    r"are to be|what is|what was|who has|who is|it is of|lest|save for)\b",
    re.IGNORECASE,
)
"""Turns of phrase that need a second reading more often than not."""

CODE = re.compile(r"\bis None\b|`[^`]*`")
"""Not prose: Python's `is None`, and what a page quotes, such as the names of tests."""


@dataclass
class Measure:
    """A figure: how many of `total` are `places`, as a share of `per`; `bound` is the highest that passes."""

    title: str
    per: int
    bound: float
    places: list[str] = field(default_factory=list)
    total: int = 0

    @property
    def figure(self) -> float:
        return self.per * len(self.places) / max(1, self.total)


# Lower a bound when the figure has fallen; never raise one.
PRODUCT_BOUNDS = {"names": 2.0, "functions": 2.0, "docstrings": 2.0, "phrases": 6.0}
TEST_BOUNDS = {"names": 5.0, "functions": 2.0, "docstrings": 2.0, "phrases": 4.0}


def new_measures(bounds: dict[str, float]) -> dict[str, Measure]:
    """Return the measures with these bounds."""
    return {
        "names": Measure("variables with vague names, in 1,000", 1000, bounds["names"]),
        "functions": Measure("functions named by a participle, in 100", 100, bounds["functions"]),
        "docstrings": Measure("docstrings that open with What, Of, Who ..., in 100", 100, bounds["docstrings"]),
        "phrases": Measure("turns of phrase, in 1,000 lines of code and pages", 1000, bounds["phrases"]),
    }


CLASS_NAMES_BOUND = 2
"""Names that more than one class has."""


def python_files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def pages(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").rglob("*.md"))


def is_named_by_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the last word of a function's name is a participle. Properties are nouns and do not count."""
    name = function.name.strip("_")
    is_property = any("property" in ast.unparse(decorator) for decorator in function.decorator_list)
    if is_property or name in VERBS or name.startswith("test"):
        return False
    last_word = name.rpartition("_")[2]
    return last_word in PARTICIPLES or last_word.endswith("ed")


def measure_code(path: Path, shown: str, measures: dict[str, Measure], classes: dict[str, set[str]]) -> None:
    """Add what a file of code has to the measures."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        at = f"{shown}:{getattr(node, 'lineno', 1)}"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            measures["names"].total += 1
            if node.id in VAGUE_NAMES:
                measures["names"].places.append(f"{at} {node.id}")
        if isinstance(node, ast.ClassDef):
            classes[node.name.strip("_")].add(at)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            measures["functions"].total += 1
            if is_named_by_participle(node):
                measures["functions"].places.append(f"{at} {node.name}")
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            measures["docstrings"].total += docstring is not None
            if docstring and OPENING.match(docstring):
                measures["docstrings"].places.append(f"{at} {docstring.splitlines()[0]}")


def measure_lines(path: Path, shown: str, measure: Measure) -> None:
    """Add the lines of a file of code or of a page to the measure of phrases."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        measure.total += 1
        prose = CODE.sub("", line)
        measure.places += [f"{shown}:{number} {match[0]}: {line.strip()}" for match in PHRASES.finditer(prose)]


def measure_files(
    root: Path, paths: Iterable[Path], bounds: dict[str, float]
) -> tuple[dict[str, Measure], dict[str, set[str]]]:
    """Return the measures of files of code, and the places of each class name that more than one class has."""
    measures, classes = new_measures(bounds), defaultdict[str, set[str]](set)
    for path in paths:
        shown = str(path.relative_to(root))
        measure_code(path, shown, measures, classes)
        measure_lines(path, shown, measures["phrases"])
    return measures, {name: places for name, places in sorted(classes.items()) if len(places) > 1}


def measure_product(root: Path) -> tuple[dict[str, Measure], dict[str, set[str]]]:
    """Return the measures of the product's code and of all pages, and its class names as `measure_files` does."""
    measures, classes = measure_files(root, python_files(root), PRODUCT_BOUNDS)
    for path in pages(root):
        measure_lines(path, str(path.relative_to(root)), measures["phrases"])
    return measures, classes


def print_measures(measures: dict[str, Measure], shown: str | None) -> bool:
    """Print the figures, with the places of those that are above their bounds. Return whether one is."""
    is_above = False
    for name, measure in measures.items():
        print(f"{name:10} {measure.figure:6.1f} {measure.title}; at most {measure.bound:g}")
        if measure.figure > measure.bound or name == shown:
            is_above |= measure.figure > measure.bound
            print(*measure.places, sep="\n", file=sys.stderr)
    return is_above


def main(shown: str | None = None) -> int:
    measures, classes = measure_product(CHECKOUT)
    is_above = print_measures(measures, shown)
    print(f"{'classes':10} {len(classes):6} class names with more than one class; at most {CLASS_NAMES_BOUND}")
    if len(classes) > CLASS_NAMES_BOUND or shown == "classes":
        is_above |= len(classes) > CLASS_NAMES_BOUND
        for name, places in classes.items():
            print(name, *sorted(places), file=sys.stderr)
    print("In the tests:")
    of_tests, _ = measure_files(CHECKOUT, sorted((CHECKOUT / "tests").rglob("*.py")), TEST_BOUNDS)
    is_above |= print_measures(of_tests, shown)
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--show"] else None))
