"""The provider SDK: publish events inside your own transaction."""
