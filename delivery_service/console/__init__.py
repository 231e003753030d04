"""Pages for operators and customers."""
