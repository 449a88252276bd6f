"""``python -m trine``."""

from trine.cli.main import main

main()
