"""The demo: simulated users against the real stack, and what became of it."""
