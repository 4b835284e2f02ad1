"""Holdfast: the reliability layer of an AI training cluster.

Importing this package imports nothing else; each room is imported by whoever needs it, so that the
command line answers at once and a training process pays only for what it uses.
"""

__version__ = "0.1.0"
