"""Usage accounting: which run used which device, when and at which price; budgets and reports."""
