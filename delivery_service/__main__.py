"""``python -m delivery_service`` is ``surehook``."""

from delivery_service.cli import main

main()
