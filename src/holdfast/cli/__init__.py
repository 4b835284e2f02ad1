"""The command `holdfast`: each verb is a module.

Data go to stdout, everything else to stderr. A user's mistake is one sentence and a hint on stderr, and exit
code 2. Exit codes: 0 done, 1 a finding the verb was asked to signal, 2 bad input, 130 interrupted.
"""

import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.cli.lazy import LazyGroup
from holdfast.cli.terminal import NO_ROOM, discard_output, open_streams, tell
from holdfast.cli.usage import sentence
from holdfast.record.errors import HoldfastError

HOLDFAST = LazyGroup(
    "holdfast.cli",
    {
        "Train": {
            "run": "Run a training script on one or more nodes and keep it going.",
            "attach": "Show a live run: its lines so far, and those that follow.",
            "stop": "End a live run.",
            "migrate": "Give the place of a member or node in a live run to another.",
            "drain": "Have a live run go on without a node.",
            "restore": "Let a node that was drained take part in a live run again.",
            "chaos": "Inject a fault into a live run, on purpose.",
            "replay": "Compute one lane of a step again and compare it with the record.",
            "checkpoint": "List, prove, copy, convert and prune a run's checkpoints.",
        },
        "See": {
            "check": "Test this node before it is given work again.",
            "doctor": "Show which metrics are available, which are missing, and how to switch them on.",
            "watch": "Watch runs and the machines beneath them; raise an alert for each incident.",
            "diagnose": "Say why a run is slow, whose problem it is, what it costs and what to do.",
            "incidents": "List the incidents that were diagnosed.",
            "runbook": "Print what to do about an incident, filled in with its own subjects.",
            "stragglers": "Find out from a trace of operations who holds a step back, by what-if.",
            "topology": "Show the cluster as one graph: what depends on what, and whose it is.",
            "collect": "Read metrics that exporters lack: cooling, kernel log, fabric, GPUs, Slurm.",
        },
        "Act": {
            "control": "Decide what to do about incidents, priced; act on the cluster within budgets.",
            "actions": "List the actions of control, taken or announced, and their results.",
        },
        "Price": {
            "report": "Show where every GPU-second of a run went.",
            "cost": "Price an incident or a run in five layers, and in progress.",
            "finance": "Show spend, useful spend and waste by cause and team.",
            "mfu": "Compute model and hardware FLOPs utilisation.",
            "reference": "Show the built-in reference figures and their sources.",
        },
        "Rehearse": {
            "plan": "Plan a run: checkpoint cadence, cluster size, end date, failure rates.",
            "simulate": "Simulate a run on a cluster that breaks, under one policy or several.",
            "drill": "Practise on simulated incidents: list, play and reveal scenarios.",
            "bench": "Measure Holdfast against a peer or a physical limit.",
        },
        "Record": {
            "import": "Import journals, scheduler and tracker logs, and tables.",
            "runs": "List the runs in the store.",
            "events": "Show the events of a run, filtered, and follow new ones.",
        },
    },
    name="holdfast",
    help="Keeps training runs moving, finds what slows them, and accounts for every GPU-second.",
)
HOLDFAST.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
click.version_option(__version__, "--version", prog_name="holdfast")(HOLDFAST)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    open_streams()
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        with HOLDFAST.make_context("holdfast", arguments) as context:
            outcome: Any = HOLDFAST.invoke(context)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except HoldfastError as error:
        _complain(error.sentence, error.hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "holdfast"
        return _complain(sentence(error), f"See `{where} --help`.")
    except click.ClickException as error:
        return _complain(error.format_message(), "")
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _left_by_reader()
    except SystemExit as stop:
        # rich turns a broken pipe into an exit with code 1.
        if isinstance(stop.__context__, BrokenPipeError):
            return _left_by_reader()
        raise
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        discard_output()
        full = f"No space left for the output: {error.strerror}."
        return _complain(full, "Print it to a terminal, or to a disk with room.")


def _left_by_reader() -> int:
    """End without a failure: the reader has seen enough, as in `holdfast events | head`."""
    discard_output()
    return 0


def _complain(sentence: str, hint: str) -> int:
    tell(sentence, hint)  # if stderr is closed, the exit code still tells
    return 2
