"""A listener for stores of checkpoints, for tests of several folders."""


def tell_nobody(*_: object, **__: object) -> None:
    """Ignore the report."""
