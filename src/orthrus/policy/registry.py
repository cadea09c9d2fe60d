"""Policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from orthrus.policy.baselines import FirstComeFirstServed, Homogeneous
from orthrus.policy.ibs import IntraBatchScheduler
from orthrus.policy.options import OptionError, PolicyOptions
from orthrus.policy.work import Policy

PolicyClass = type[IntraBatchScheduler] | type[FirstComeFirstServed] | type[Homogeneous]

POLICIES: Mapping[str, PolicyClass] = MappingProxyType(
    {policy.name: policy for policy in (IntraBatchScheduler, FirstComeFirstServed, Homogeneous)}
)
"""Name to class; the first is the default."""


def make(name: str, options: PolicyOptions | None = None) -> Policy:
    """A new policy. OptionError if the name is unknown or an option is set that this policy does not use."""
    if name not in POLICIES:
        raise OptionError("policy", name, f"one of {', '.join(POLICIES)}")
    options = options or PolicyOptions()
    policy = POLICIES[name]
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default and field.name not in policy.uses:
            allowed = f"left at its default {field.default!r}: policy {name!r} does not use it"
            raise OptionError(field.name, value, allowed)
    return policy(options)
