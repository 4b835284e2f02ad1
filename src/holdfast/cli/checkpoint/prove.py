"""`holdfast checkpoint prove`: show that a run can go on from its newest checkpoint."""

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.checkpoint.place import located, run_of
from holdfast.cli.checkpoint.remote import is_remote, place_of
from holdfast.cli.record import home, json_option, open_record
from holdfast.cli.terminal import print_json, printable
from holdfast.record.runs import find_run
from holdfast.record.store import Store
from holdfast.run.replaying import PROOF_STEPS_MAX

if TYPE_CHECKING:
    from holdfast.train.place import Storage

SAME = "script, arguments, data, versions or chip may also differ from the run's"


@click.command("prove", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("run_or_path")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--run", help="The run in the record, if the path or URL does not name it.")
@click.option(
    "--steps-max",
    type=click.IntRange(min=1),
    default=PROOF_STEPS_MAX,
    show_default=True,
    help="How many steps may be computed if the run has not gone on from the checkpoint yet.",
)
@json_option
def command(
    run_or_path: str,
    script: str,
    arguments: tuple[str, ...],
    run: str | None,
    steps_max: int,
    as_json: bool,
) -> int:
    """Load the newest checkpoint of RUN_OR_PATH into a fresh process, with the run's SCRIPT and ARGUMENTS,
    compute the step after it, and compare the result with the run's. If the run has not gone on from it, the
    steps that led to it are computed again. RUN_OR_PATH may be s3://BUCKET/PREFIX, too. Exit code 0: the same
    bits; 1: other bits, or a damaged checkpoint.

    The result is recorded.
    """
    from holdfast.train.kept import root_of
    from holdfast.train.proof_making import ProofRecord, ProofRequest, proven_at, proven_in, write_down

    remote = place_of(run_or_path) if is_remote(run_or_path) else None
    asked = ProofRequest(run_or_path, (script, *arguments), run, steps_max)
    root = None if remote is not None else root_of(located(run_or_path))
    name = run or ("" if root is None else run_of(root.absolute()))
    with open_record(os.environ.get("HOLDFAST_STORE")) as store:
        if remote is not None and not name:
            name = _owner(remote, store)
        name = find_run(store, name) if name else ""
        known = ProofRecord.of(store, name)
        if remote is not None:
            proof = proven_at(remote, known, asked, home())
        else:
            assert root is not None
            proof = proven_in(root, known, asked)
    if name:
        write_down(name, proof, home())
    if as_json:
        print_json(proof)
    else:
        verdict = "proven" if proof.is_proven else "NOT proven"
        where = remote.name if remote is not None else str(root)
        click.echo(f"checkpoint of step {proof.step} in {printable(where)}: {verdict}")
        click.echo(f"{proof.reason[0].upper()}{proof.reason[1:]}{'' if proof.is_proven else f' ({SAME})'}.")
    return 0 if proof.is_proven else 1


def _owner(place: "Storage", store: Store) -> str:
    """The run that the place belongs to, if the record here has it."""
    from holdfast.train.fetched import troubles_told
    from holdfast.train.owning import owner_at

    with troubles_told(place):
        owner = owner_at(place)
    return owner if owner in {summary.run for summary in store.runs()} else ""
