"""Framework adapters of the receiver kit."""
