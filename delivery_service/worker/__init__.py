"""The worker: claim, send, decide, record."""
