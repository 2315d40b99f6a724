"""A lane in a process of its own."""
