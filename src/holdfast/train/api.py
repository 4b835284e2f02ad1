"""What `holdfast.train` offers to a training script, for which torch is loaded."""

from holdfast.train.best import Best
from holdfast.train.data import MapData, StreamData
from holdfast.train.joining import Run, State, join
from holdfast.train.opening import Checkpoint, load_checkpoint
from holdfast.train.steps import Lane, Step

__all__ = [
    "Best",
    "Checkpoint",
    "Lane",
    "MapData",
    "Run",
    "State",
    "Step",
    "StreamData",
    "join",
    "load_checkpoint",
]
