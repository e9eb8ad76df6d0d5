"""The shared language: messages, the bus, the join and the price."""
