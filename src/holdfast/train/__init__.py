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

What is named here is imported when it is used: who only moves checkpoints need not load torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.train.api import (
        Best,
        Checkpoint,
        Lane,
        MapData,
        Run,
        State,
        Step,
        StreamData,
        join,
        load_checkpoint,
    )

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import holdfast.train.api as api

    found = globals()[name] = getattr(api, name)
    return found
