"""Pods that users made themselves, without a Run."""
