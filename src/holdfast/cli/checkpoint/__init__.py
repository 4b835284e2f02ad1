"""`holdfast checkpoint`: the checkpoints of a run, for people and for other programs."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.checkpoint",
    {
        "Commands": {
            "list": "Show the checkpoints of a run, and which of them it can resume from.",
            "prove": "Load the newest checkpoint, compute a step, and compare it with the run's.",
            "verify": "Read a run's checkpoints whole, and compare every chunk with its hash.",
            "copy": "Copy a checkpoint to another directory or bucket, and verify it on the way.",
            "export": "Write a checkpoint as safetensors, or in a format of torch or its DCP.",
            "import": "Make a checkpoint from such a file.",
            "prune": "Remove old checkpoints, and the chunks that no other one needs.",
        }
    },
    name="checkpoint",
    help="Inspect the checkpoints of a run, prove that they load, convert them, and remove old ones.",
)
