"""What a release is described by agrees: the version, the citation, the changelog, the workflow."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import loopscope

ROOT = Path(__file__).resolve().parents[1]


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == loopscope.__version__


def test_the_changelog_has_this_version_or_the_next() -> None:
    sections = re.findall(r"^## (\S+)( \(unreleased\))?", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    versions = [version for version, _ in sections]
    assert loopscope.__version__ in versions[:2]
    assert [bool(unreleased) for _, unreleased in sections[1:]] == [False] * (len(sections) - 1)


def test_the_workflow_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert ".ci/run" in commands["test"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    assert "make test-slow" in commands["slow"]
    assert "make release-check" in commands["package"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    called = re.findall(r"^make ([\w-]+)", "\n".join(line for lines in commands.values() for line in lines), re.M)
    assert set(called) <= set(targets)
