"""`holdfast drill`: incidents to practise on, around a table and in live runs."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.drill",
    {
        "Around a table, with simulated incidents": {
            "list": "List the scenarios; with --live, those of live drills.",
            "play": "Show what an operator would see in a scenario.",
            "reveal": "Show the same, and below it the truth.",
            "sheet": "Write the page of a tabletop: roles, injects, questions, score sheet.",
        },
        "In a live run, with real faults": {
            "live": "Make one fault, and judge the result by the record.",
            "monkey": "Make faults at random moments, unannounced, within budgets.",
        },
    },
    name="drill",
    help="Practise incidents: as a tabletop exercise, or with real faults in a live run.",
)
