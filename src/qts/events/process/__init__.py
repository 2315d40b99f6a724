"""Lane whose handlers run in an isolated process."""
