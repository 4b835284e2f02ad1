"""So that `python -m holdfast` is the command."""

from holdfast.cli import main

main()
