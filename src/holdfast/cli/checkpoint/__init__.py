"""`holdfast checkpoint`: what a run has kept, for people and for other programs."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.checkpoint",
    {
        "Commands": {
            "list": "The checkpoints of a run, and which can be gone on from.",
            "prove": "Load the newest checkpoint, compute a step, and compare it with the run's.",
            "verify": "Read every byte of a run's checkpoints, and compare it with its hash.",
            "copy": "A checkpoint in another directory as well, verified on the way.",
            "export": "A checkpoint as a safetensors file, or one that torch or its DCP opens.",
            "import": "A checkpoint made of such a file.",
            "prune": "Remove old checkpoints, and chunks that none needs.",
        }
    },
    name="checkpoint",
    help="Look at a run's checkpoints, move them, and remove old ones.",
)
