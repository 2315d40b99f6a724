"""A venue in memory: an example of what a package adds to QTS."""

from memory_venue.venue import MemoryVenue as MemoryVenue
