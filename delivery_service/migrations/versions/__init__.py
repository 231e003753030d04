"""One module for each revision. A released revision is never changed."""
