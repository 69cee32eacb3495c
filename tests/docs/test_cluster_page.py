"""The page about clusters names settings, metrics and alerts that exist, and all settings."""

import re
from dataclasses import fields
from pathlib import Path

import yaml

from topics_server.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cluster.md").read_text()


def test_all_settings_of_clusters_are_on_the_page() -> None:
    settings = {field.metadata["env"] for field in fields(Settings)}
    rows = set(re.findall(r"^\| `(TOPICS_CLUSTER\w*)` \|", PAGE, re.MULTILINE))
    assert rows == {name for name in settings if name.startswith("TOPICS_CLUSTER")}
    named = set(re.findall(r"\bTOPICS_\w+", PAGE))
    assert named <= settings, named - settings


def test_metrics_and_alerts_on_the_page_exist() -> None:
    alerts = {
        rule["alert"]
        for group in yaml.safe_load((DOCS / "grafana" / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    named = set(re.findall(r"`(Topics\w+)`", PAGE))
    assert named <= alerts, named - alerts
    assert {alert for alert in alerts if alert.startswith("TopicsCluster")} <= named
    metrics = (DOCS / "metrics.md").read_text()
    for metric in re.findall(r"`(topics_\w+)`", PAGE):
        assert f"| `{metric}` |" in metrics, metric
