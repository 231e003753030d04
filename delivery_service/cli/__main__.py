"""``python -m delivery_service.cli`` is ``surehook``."""

from delivery_service.cli import main

main()
