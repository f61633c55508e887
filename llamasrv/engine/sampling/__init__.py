"""Choosing a sequence's next token: samplers, grammars, thinking budgets, stop strings."""
