"""TypeSafe's System One."""
