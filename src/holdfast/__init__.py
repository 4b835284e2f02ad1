"""Holdfast: the reliability layer of an AI training cluster.

Importing this package imports nothing else; each room is imported where it is needed, so that the command
line starts quickly and a training process loads only what it uses.
"""

__version__ = "0.1.0"
