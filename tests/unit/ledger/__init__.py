"""The ledger's own tests."""
