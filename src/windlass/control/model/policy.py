"""Choices of the platform team about scheduling: the ConfigMap `scheduling` in `windlass-system`.

It need not exist. It is read live: a change counts from the next decision on. Keys:

    reservations   how many reservations there may be over all queues, `auto` by default
"""

from __future__ import annotations

import dataclasses
import logging

from windlass.control.model.capabilities import NAMESPACE
from windlass.core.model.types import Policy
from windlass.kinds.types import core

NAME = "scheduling"
MOST_RESERVATIONS = 1000
AUTO = "auto"

log = logging.getLogger(__name__)


class PolicyError(ValueError):
    """A value of the ConfigMap is invalid; the message names the key and the remedy."""


def read(found: core.ConfigMap | None, usual: Policy) -> Policy:
    """The policy with the values of the ConfigMap. Unknown keys are ignored."""
    data = (found.data if found else None) or {}
    text = data.get("reservations", AUTO).strip()
    if text == AUTO:
        return dataclasses.replace(usual, reservations=None)
    if not text.isdecimal() or int(text) > MOST_RESERVATIONS:
        raise PolicyError(
            f"ConfigMap {NAME} in {NAMESPACE}: reservations is {text!r}; it must be {AUTO} or a "
            f"number from 0 to {MOST_RESERVATIONS}. Correct it with kubectl edit configmap {NAME} "
            f"-n {NAMESPACE}"
        )
    return dataclasses.replace(usual, reservations=int(text))


def read_or_keep(found: core.ConfigMap | None, current: Policy) -> Policy:
    """The same; a ConfigMap that cannot be read changes nothing, and the log says why."""
    try:
        return read(found, current)
    except PolicyError as error:
        log.warning("scheduler: the policy stays as it was: %s", error)
        return current
