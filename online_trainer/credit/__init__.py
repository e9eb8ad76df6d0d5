"""Credit assignment: from a turn's rewards to its advantage. One rule per file, all behind `protocol.Credit`."""
