"""The simulated KIS host."""
