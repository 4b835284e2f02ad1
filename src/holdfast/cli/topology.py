"""`holdfast topology`: show the cluster as one graph: its parts, its doubts, and the paths in it."""

from pathlib import Path

import click
from rich.console import Console

from holdfast import wording
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json, printable
from holdfast.cli.topology_sources import load_topology, systems_options, topology_option
from holdfast.cli.topology_text import show_all, show_path, show_subject
from holdfast.signals.surveys import Systems
from holdfast.topology import check, file
from holdfast.topology.summaries import subject_data, summary


@click.group("topology", no_args_is_help=True)
def command() -> None:
    """Show the cluster as one graph: what depends on what, and who owns it.

    It is described in a small file, and by live systems that know parts of it.
    """


@command.command()
@click.argument("subject", required=False)
@topology_option
@systems_options
@click.option("--example", is_flag=True, help="Print a topology file to begin with, and nothing else.")
@click.option("--schema", is_flag=True, help="Print the file's JSON Schema for editors, and nothing else.")
@json_option
def show(
    subject: str | None,
    topology_path: Path | None,
    systems: Systems,
    example: bool,
    schema: bool,
    as_json: bool,
) -> None:
    """Show all parts and their owners; or what SUBJECT depends on, and what depends on it."""
    if example or schema:
        click.echo(file.example() if example else file.schema(), nl=False)
        return
    topology = load_topology(topology_path, systems).topology
    if as_json:
        print_json(subject_data(topology, subject) if subject else summary(topology))
    elif subject:
        show_subject(topology, subject, Console(highlight=False))
    else:
        show_all(topology, Console(highlight=False))


@command.command("check")
@topology_option
@systems_options
@json_option
def check_(topology_path: Path | None, systems: Systems, as_json: bool) -> int:
    """List what is suspicious about the topology. Exit with 1 if anything is."""
    described = load_topology(topology_path, systems)
    doubts = check.doubts(described)
    if as_json:
        print_json({"subjects": len(described.topology), "doubts": doubts})
    else:
        for doubt in doubts:
            click.echo(f"{doubt.kind}: {printable(doubt.text)}")
        count = wording.many(len(described.topology), "subject")
        click.echo(f"holdfast: {count}, {wording.many(len(doubts), 'doubt')}.", err=True)
    return 1 if doubts else 0


@command.command()
@click.argument("cause")
@click.argument("symptom")
@topology_option
@systems_options
@json_option
def path(cause: str, symptom: str, topology_path: Path | None, systems: Systems, as_json: bool) -> int:
    """Show how CAUSE reaches SYMPTOM, with the owners and seams on the way. Exit with 1 if it does not."""
    topology = load_topology(topology_path, systems).topology
    way = topology.path(cause, symptom)
    if as_json:
        steps = [{"subject": one, "kind": topology.kind(one), "owner": topology.owner(one)} for one in way]
        print_json({"path": steps, "seams": topology.seams(way)})
    elif way:
        show_path(topology, way, Console(highlight=False))
    else:
        around = " (the other way round it does)" if topology.path(symptom, cause) else ""
        click.echo(f"{printable(cause)} does not reach {printable(symptom)}{around}.")
    return 0 if way else 1
