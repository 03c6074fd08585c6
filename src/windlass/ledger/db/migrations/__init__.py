"""Versions of the ledger's tables: `repository.LedgerRepository.open` upgrades a database."""
