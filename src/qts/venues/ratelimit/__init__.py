"""Rate limits of a venue: limiter, sliding windows, adaptive rate, usage log."""
