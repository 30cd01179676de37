"""Versions of a job's code in a scenario: their names, and the manifests that production knows them by."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.code.manifest import Manifest, ManifestEntry, digest_of, manifest_of, version_of
from holdfast_proving.scenario.scenario import JobPlan, Scenario

CODE_ROOT = "/code"
SCRIPT = "train.py"


def versions_of(scenario: Scenario, plan: JobPlan) -> tuple[str, ...]:
    """Return the versions of a job's code, in the order in which people want them to run."""
    asked = [(it.at_h, it.version) for it in scenario.updates if it.job == plan.name and it.version]
    return tuple(dict.fromkeys([plan.version, *(name for _, name in sorted(asked))])) if plan.version else ()


def manifests_of(scenario: Scenario) -> dict[str, Manifest]:
    """Return the manifests of all versions of all jobs, by their digests."""
    manifests = (_manifest(plan.name, version) for plan in scenario.jobs for version in versions_of(scenario, plan))
    return {version_of(manifest): manifest for manifest in manifests}


def digest(plan: JobPlan, version: str) -> str:
    """Return the name by which production knows a version."""
    return version_of(_manifest(plan.name, version))


def refusals(scenario: Scenario) -> Iterator[str]:
    """Return what is wrong with the updates and the bugs of a scenario."""
    known = {plan.name: versions_of(scenario, plan) for plan in scenario.jobs}
    for update in scenario.updates:
        if not known.get(update.job):
            yield f"an update is of {update.job!r}, which is no job with a version"
    for kind in scenario.faults:
        if not kind.version:
            continue
        if kind.place != "job" or kind.version not in known.get(kind.of, ()):
            yield f"fault {kind.name}: {kind.version!r} is no version of job {kind.of!r}: give it place = 'job', and of"
        if kind.per_day or kind.lasts != "moment":
            yield f"fault {kind.name}: a bug is there whenever its version runs: it has no per_day, and no lasts"


def _manifest(job: str, version: str) -> Manifest:
    content = f"{job} {version}".encode()
    return manifest_of([ManifestEntry(path=SCRIPT, sha256=digest_of(content), size_bytes=len(content))])
