"""The delivery service: engine, API, console and command line."""
