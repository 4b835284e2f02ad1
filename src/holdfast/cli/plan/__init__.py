"""`holdfast plan`: what to expect of a run, and how to set it up, before and while it runs."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.plan",
    {
        "Commands": {
            "cadence": "How often to checkpoint, and what the present setting costs.",
            "run": "When a run will be done, how sure that is, and what would make it sooner.",
            "size": "Which GPU counts, layouts and batch sizes fit a model and a cluster.",
            "fit": "Failure rates, repair times and bad nodes, from a record of faults.",
        }
    },
    name="plan",
    help="Foresee a run: its cadence, its size, its end, and the failures it will meet.",
)
