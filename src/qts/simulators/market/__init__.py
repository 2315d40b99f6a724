"""Markets without I/O: a function of the seed, the time and what was planted."""
