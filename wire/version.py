"""The one place that has the version."""

VERSION = "0.1.0"
