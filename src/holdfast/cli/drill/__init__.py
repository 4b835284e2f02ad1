"""`holdfast drill`: incidents to practise on, with the truth kept apart."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.drill",
    {
        "Commands": {
            "list": "List the scenarios.",
            "play": "Play a scenario and show what an operator would see.",
            "reveal": "Show the same, and the truth below it.",
        }
    },
    name="drill",
    help="Practise on simulated incidents: half an hour of a cluster, its record and its monitoring.",
)
