"""How good the credit is, in numbers: tasks whose true credit is known, and the metrics that compare with it."""
