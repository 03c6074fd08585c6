"""Replays demand through the deciding core."""
