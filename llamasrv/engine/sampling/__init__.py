"""How a sequence's next token is chosen, and what it must not be."""
