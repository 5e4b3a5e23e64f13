"""The version that is installed and deployed is that of the package."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.deploy.files import DEPLOY, ROOT


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    chart = yaml.safe_load((DEPLOY / "helm/queen/Chart.yaml").read_text())
    assert chart["appVersion"] == version
    texts = [
        (ROOT / "docs/howto/install.md").read_text(),
        (ROOT / "docs/howto/deploy.md").read_text(),
        (DEPLOY / "container/Containerfile").read_text(),
        (DEPLOY / "compose/compose.yaml").read_text(),
    ]
    named = re.findall(r"\bqueen(?:-spark)?[:-](\d+\.\d+\.\d+)", "\n".join(texts))
    assert len(named) > 8
    assert set(named) == {version}
