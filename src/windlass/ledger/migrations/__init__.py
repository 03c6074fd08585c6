"""How the ledger's tables came to be, one step after the other; `ledger.book` takes the steps."""
