"""Plain data that every layer may hold: what was asked, what is running, what came out. Standard library only."""
