"""What of a long episode the model still sees."""
