"""`deploy/prometheus`: the configuration, and cases in which each alert fires or does not."""

from __future__ import annotations

import pytest
import yaml
from deploy.monitoring.conftest import DEPLOY

FOLDER = DEPLOY / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"][0]["rules"]
ALERTS = [rule for rule in RULES if "alert" in rule]


def test_the_configuration_is_valid(promtool):
    assert "SUCCESS" in promtool("check", "config", str(FOLDER / "prometheus.yml"))
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", str(FOLDER / "rules.yml"))


def test_alerts_fire_when_they_should(promtool):
    assert "SUCCESS" in promtool("test", "rules", str(FOLDER / "rules_test.yml"))


def test_each_alert_has_cases():
    cases = [
        case
        for test in yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    come = {
        (case["alertname"], alert["exp_labels"]["severity"]) for case in cases for alert in case["exp_alerts"]
    }
    assert come == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_each_alert_is_explained(rule):
    page = (DEPLOY.parent / "docs/monitoring.md").read_text()
    assert f"`{rule['alert']}`" in page
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
