"""`holdfast drill`: incidents to practise on, with the truth kept apart."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.drill",
    {
        "Commands": {
            "list": "List the scenarios.",
            "live": "Make a real fault in a run that goes on, and judge what came of it.",
            "monkey": "Make such faults at random moments, unannounced, within budgets.",
            "play": "Play a scenario and show what an operator would see.",
            "reveal": "Show the same, and the truth below it.",
            "sheet": "Make the page of a tabletop: roles, injects, questions, a score sheet.",
        }
    },
    name="drill",
    help="Practise: on simulated incidents around a table, and on real faults in a live run.",
)
