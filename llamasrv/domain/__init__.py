"""Plain data shared by all layers: requests, sequences, results. Standard library only."""
