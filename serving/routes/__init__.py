"""HTTP: one file per resource; what they decide is decided elsewhere."""
