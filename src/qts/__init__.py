"""QTS: a self-hosted, event-driven trading runtime."""
