"""`holdfast bench`: every speed claim, as a ratio against a peer or a physical limit, for anyone to run."""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "holdfast.cli.bench",
    {
        "ledger": "Fold a million events: events a second, memory, the cost of one more.",
        "record": "Record events: the cost of one against a plain write, and what a SIGKILL loses.",
    },
    name="bench",
    help="Measure Holdfast against a peer or a physical limit.",
)
