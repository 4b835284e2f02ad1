"""Inside a worker: the API of a training script.

```python
import holdfast.train as hf

with hf.join() as run:
    ...
    state = run.protect(model, optimizer, scheduler, lanes=8, seed=1)
    for step in state.steps(1000):
        for lane in step.lanes:
            lane.backward(loss_of(step.number, lane.index))
        step.commit()
```

Names are imported on first use, so that a program that only moves checkpoints does not load torch.
"""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
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

_HOMES = {
    "best": {"Best"},
    "data": {"MapData", "StreamData"},
    "joining": {"Run", "State", "join"},
    "opening": {"Checkpoint", "load_checkpoint"},
    "steps": {"Lane", "Step"},
}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
