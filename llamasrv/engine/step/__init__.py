"""What one step computes: the plan, what carries it out, and what comes of it."""
