"""Policies by name: today's, the oracle, the papers', the wrong ones, and files with settings."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from holdfast.settings.load import ConfigRefused
from holdfast_proving.policies.oracle import INFORMED, OBSERVANT, ORACLE
from holdfast_proving.policies.papers import PAPERS
from holdfast_proving.policies.policy import TODAY, Policy, load_policy
from holdfast_proving.policies.wrong import WRONG


def by_name(policies: Iterable[Policy]) -> dict[str, Policy]:
    """Return policies by their names. Raises ValueError if two have the same."""
    named: dict[str, Policy] = {}
    for policy in policies:
        if named.setdefault(policy.name, policy) is not policy:
            raise ValueError(f"two policies have the name {policy.name}")
    return named


NAMED = by_name((TODAY, ORACLE, INFORMED, OBSERVANT, *PAPERS, *WRONG))


def policy_of(name_or_file: str) -> Policy:
    """Return the policy of a name, or of a TOML file. Raises ConfigRefused."""
    if name_or_file in NAMED:
        return NAMED[name_or_file]
    if name_or_file.endswith(".toml"):
        return load_policy(name_or_file)
    near = get_close_matches(name_or_file, NAMED, n=1)
    meant = f"perhaps {near[0]} is meant" if near else f"there are {', '.join(NAMED)}"
    raise ConfigRefused(f"there is no policy {name_or_file}: {meant}; settings are in a file that ends with .toml")
