"""Prometheus' own tools accept the alert rules and the served metrics, and alerts fire when they should."""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import promtool
import pytest
import yaml
from unit.busy_namespace import BusyNamespace

from lakemq.jobs.metrics.server import serve_metrics

CHECKOUT = Path(__file__).parents[2]
ALERTS = CHECKOUT / "conf/monitoring/prometheus-alerts.yaml"
DASHBOARD = json.loads((CHECKOUT / "conf/monitoring/grafana-dashboard.json").read_text(encoding="utf-8"))
CASES = yaml.safe_load(Path(__file__).with_name("alert_cases.yaml").read_text(encoding="utf-8"))

_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}


@pytest.fixture(scope="module")
def program() -> str:
    return os.environ.get(promtool.VARIABLE) or str(promtool.build())


def run(program: str, *arguments: str, stdin: str = "", cwd: Path | None = None) -> str:
    """Run promtool, which must accept what it gets, and return what it prints."""
    done = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_alert_rules(program: str) -> None:
    shown = run(program, "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    count = len([rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]])
    assert f"{count} rules found" in shown


def build_case(case: dict[str, Any]) -> dict[str, Any]:
    """Return the input of `promtool test rules` for a case. No alert: none may fire."""
    name = case["alert"]
    selector = 'alertstate="firing"' if name is None else f'alertname="{name}",alertstate="firing"'
    expected = [] if name is None else [{"labels": "{}", "value": 1}]
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": str(values)} for series, values in case["series"].items()],
        "promql_expr_test": [
            {"expr": f"count(ALERTS{{{selector}}})", "eval_time": case["at"], "exp_samples": expected}
        ],
    }


def test_alerts_fire_in_the_cases_of_promtool(program: str, tmp_path: Path) -> None:
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text(encoding="utf-8"))
    cases = {"rule_files": [ALERTS.name], "tests": [build_case(case) for case in CASES]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    assert "SUCCESS" in run(program, "test", "rules", "cases.yaml", cwd=tmp_path)


def test_every_alert_has_a_case() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert {case["alert"] for case in CASES} - {None} == {*rules}


def test_promtool_accepts_the_served_metrics(program: str, busy: BusyNamespace) -> None:
    with serve_metrics(busy.mq, "127.0.0.1", 0, busy.serving) as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read().decode()
    assert "lakemq_group_lag" in text
    run(program, "check", "metrics", stdin=text)


def list_expressions() -> list[str]:
    """Return the expressions of the dashboard, with its variables filled in."""
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for name, value in _VARIABLES.items():
        expressions = [expression.replace(name, value) for expression in expressions]
    return [re.sub(r"\$\{?\w+(?::\w+)?\}?", "x", expression) for expression in expressions]


def test_prometheus_parses_every_expression_of_the_dashboard(program: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(list_expressions())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(program, "check", "rules", "--lint=none", str(file))
    assert len(rules) >= 15
