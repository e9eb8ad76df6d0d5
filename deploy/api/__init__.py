"""Deploy's own HTTP API."""
