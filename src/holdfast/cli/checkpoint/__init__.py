"""`holdfast checkpoint`: what a run has kept, for people and for other programs."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.checkpoint",
    {
        "Commands": {
            "list": "The checkpoints of a run, and which are sound.",
            "export": "A checkpoint as a safetensors file, or one that torch or its DCP opens.",
        }
    },
    name="checkpoint",
    help="Look at a run's checkpoints, and export them.",
)
