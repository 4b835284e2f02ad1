"""`holdfast plan size`: which layouts fit a model and a cluster, or whether a given one does."""

from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.numbers import count
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.economics.sizing.parallelism import Framework, Recompute
from holdfast.economics.sizing.size_file import (
    SPARE_NODES_MAX,
    ClusterTable,
    ModelTable,
    Request,
    TrainingTable,
    merged,
    understood,
)
from holdfast.economics.sizing.sizing import RANKED_BY, Wanted, answer
from holdfast.economics.sizing.starting import Printed, load_request
from holdfast.ledger.flops import Precision

ROWS_USUAL = 10


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, typed; None for what was not given."""

    file: Path | None
    model: str | None
    chip: str | None
    gpus: int | None
    gpus_per_node: int | None
    spare_nodes: int | None
    precision: Precision | None
    seq: int | None
    global_batch: int | None
    tokens: int | None
    lanes: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    dp: int | None
    ep: int | None
    interleave: int | None
    micro_batch: int | None
    zero: str | None
    recompute: Recompute | None
    framework: Framework | None
    survive_node_loss: bool
    limit: int
    prices_path: Path | None
    as_json: bool


@click.command("size")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--model", metavar="NAME", help="A model that `holdfast reference` lists, such as llama3-70b.")
@click.option("--chip", help="Such as h100, or what nvidia-smi says.")
@click.option("--gpus", type=count, help="GPUs of the run.")
@click.option("--gpus-per-node", type=count, metavar="N", help="GPUs of a node.  [default: as NVIDIA builds]")
@click.option(
    "--spare-nodes", type=click.IntRange(0, SPARE_NODES_MAX), metavar="N", help="Nodes that stand by."
)
@click.option("--precision", type=click.Choice(["bf16", "fp8"]), help="Of the arithmetic.  [default: bf16]")
@click.option("--seq", type=count, metavar="N", help="Tokens of a sequence.")
@click.option("--global-batch", type=count, metavar="N", help="Sequences of a step, all GPUs together.")
@click.option("--tokens", type=count, help="To be trained on in all, such as 15t.")
@click.option("--lanes", type=count, metavar="L", help="Lanes, for a script that joins Holdfast.")
@click.option("--tp", type=count, metavar="N", help="Tensor parallel.")
@click.option("--pp", type=count, metavar="N", help="Pipeline parallel; with --tp, that layout is checked.")
@click.option("--cp", type=count, metavar="N", help="Context parallel.")
@click.option("--dp", type=count, metavar="N", help="Data parallel.  [default: what is left]")
@click.option("--ep", type=count, metavar="N", help="Expert parallel, out of data x context parallel.")
@click.option("--interleave", type=count, metavar="N", help="Stages of the pipeline on each GPU.")
@click.option("--micro-batch", type=count, metavar="N", help="Sequences that a replica computes at a time.")
@click.option("--zero", type=click.Choice(["0", "1", "2", "3"]), help="ZeRO stage; 3 is FSDP.")
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]), help="Of activations.")
@click.option(
    "--framework",
    type=click.Choice(["megatron", "torchtitan"]),
    help="Whose memory is meant.  [default: any]",
)
@click.option("--survive-node-loss", is_flag=True, help="Only layouts that go on when a node is lost.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=ROWS_USUAL, show_default=True, help="Rows shown."
)
@prices_option
@json_option
def command(**flags: Any) -> None:
    """Rank the layouts that fit a model and a cluster by the time a step takes, or check the one given.

    What is wrong is refused with the reason and the nearest right ones. FILE (TOML) may say the same as the
    flags, and more: a model by its dimensions, the data loader. `holdfast run --size FILE` checks it, too.

    Example: holdfast plan size --model llama3-70b --gpus 1024 --chip h100
    """
    given = msgspec.convert(flags, _Flags)
    said = merged(load_request(given.file) if given.file else Request(), _request(given))
    prices = load_planning_prices(given.prices_path)
    asked = understood(said, prices, must_survive=given.survive_node_loss)
    question, found = asked.question, answer(asked.question)
    if question.wanted.is_layout:
        for warning in found.sized[0].warnings:
            click.echo(f"holdfast: {warning}", err=True)
    printed = Printed(
        case=question.case,
        memory_bytes=question.case.cluster.memory_bytes,
        usable_bytes=question.case.cluster.usable_bytes,
        usd_per_gpu_hour=question.usd_per_gpu_hour,
        sized=found.sized,
        ranked_by=RANKED_BY,
        rate=found.rate,
        assumed=asked.assumed,
    )
    if given.as_json:
        print_json(printed)
        return
    from holdfast.cli.plan import size_text

    with in_currency(prices):
        if question.wanted.is_layout:
            size_text.show_checked(printed)
        else:
            size_text.show_ranked(printed, given.limit)


def _request(given: _Flags) -> Request:
    """What the flags say."""
    return Request(
        model=ModelTable(name=given.model),
        cluster=ClusterTable(
            chip=given.chip,
            gpus=given.gpus,
            gpus_per_node=given.gpus_per_node,
            spare_nodes=given.spare_nodes,
            precision=given.precision,
        ),
        training=TrainingTable(
            sequence_tokens=given.seq,
            global_batch=given.global_batch,
            tokens=given.tokens,
            lanes=given.lanes,
            framework=given.framework,
        ),
        layout=_layout(given),
    )


def _layout(given: _Flags) -> Wanted:
    names = (name for name in Wanted.__struct_fields__ if name != "zero")
    settled = {name: getattr(given, name) for name in names}
    return msgspec.convert({**settled, "zero": None if given.zero is None else int(given.zero)}, Wanted)
