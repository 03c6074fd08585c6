"""Who held what, from when to when, at which price: intervals, prices, budgets, reports."""
