"""Plain data that every layer may hold: requests, running work, results. Standard library only."""
