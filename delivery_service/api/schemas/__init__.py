"""What operations take and give, as pydantic models: one module per resource."""
