"""The group and the root path of the platform API."""

from __future__ import annotations

GROUP, VERSION = "platform.windlass.dev", "v1alpha1"
ROOT = f"/apis/{GROUP}/{VERSION}"
