"""HTTP to receivers: whatever they do becomes an outcome value."""
