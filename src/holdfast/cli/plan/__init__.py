"""`holdfast plan`: foresee a run and find its settings, before and while it runs."""

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
    help="Plan a run: its checkpoint cadence, its cluster, its end date and its failure rates.",
)
