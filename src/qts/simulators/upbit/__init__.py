"""The simulated Upbit."""
