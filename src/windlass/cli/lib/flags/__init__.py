"""Flags: from the fields of objects back to what the user typed."""
