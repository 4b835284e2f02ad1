"""Whom a store of checkpoints tells what happened, in tests of several folders."""


def tell_nobody(*_: object, **__: object) -> None:
    """Nobody listens."""
