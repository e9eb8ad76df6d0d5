"""OpenAI's Responses API as a translation: requests become chat requests, transcripts become items and typed events."""
