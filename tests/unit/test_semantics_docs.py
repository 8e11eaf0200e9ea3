"""docs/semantics.md: each rule names an existing test, and each rule that a test cites is on the page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/semantics.md").read_text(encoding="utf-8")
RULES = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
SECTIONS = re.findall(r"^## ([A-Z])\. ", PAGE, re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/.]+)::([^`]+)`")
CITED = re.compile(r"\b(I\d+)\b|\b[Ss]emantics(?:\.md)? ([A-Z]\d*)\b")


@cache
def names_in(path: str) -> set[str]:
    """Return the names of the tests in a Python file, or of the cases in a YAML file."""
    source = (CHECKOUT / path).read_text(encoding="utf-8")
    if path.endswith(".yaml"):
        return {case["case"] for case in yaml.safe_load(source)}
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
        elif isinstance(node, ast.Assign):  # a state machine's TestCase
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.rpartition("::")[2].startswith(("test_", "Test"))}


@pytest.mark.slow
def test_rules_name_tests_that_exist() -> None:
    named = {rule: NAMED.findall(text) for rule, text in RULES.items()}
    assert [rule for rule, tests in named.items() if not tests] == []
    assert [rule for rule, tests in named.items() if RULES[rule].count("::") != len(tests)] == [], "not only tests"
    missing = [f"{rule}: {file}::{name}" for rule in RULES for file, name in named[rule] if name not in names_in(file)]
    assert missing == []


def test_rules_are_in_order_and_each_in_its_section() -> None:
    headings = re.findall(r"^##+ (\w+)", PAGE, re.MULTILINE)
    section, last = "", 0
    for heading in headings:
        if heading in SECTIONS:
            assert heading > section
            section, last = heading, 0
        else:
            assert heading[0] == section
            assert int(heading[1:]) > last
            last = int(heading[1:])
    assert len(RULES) == len(headings) - len(SECTIONS)


def test_rules_that_tests_cite_are_on_the_page() -> None:
    existing, cited, wrong = {*RULES, *SECTIONS}, set(), []
    for path in sorted([*CHECKOUT.glob("tests/**/*.py"), *CHECKOUT.glob("tests/**/*.yaml")]):
        citations = {rule or section for rule, section in CITED.findall(path.read_text(encoding="utf-8"))}
        wrong += [f"{path.relative_to(CHECKOUT)} cites {citation}" for citation in sorted(citations - existing)]
        cited |= citations
    assert wrong == []
    assert {"A", "A1", "D", "D27", "G", "I1", "I12"} <= cited
