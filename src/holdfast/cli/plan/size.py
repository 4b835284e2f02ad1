"""`holdfast plan size`: rank the layouts that fit a model and a cluster, or check a given one."""

from pathlib import Path
from typing import get_args

import click
import msgspec

from holdfast.cli.flags import argument, option, shared, takes
from holdfast.cli.prices import in_currency, load_planning_prices, prices_option
from holdfast.cli.record import json_option
from holdfast.cli.terminal import print_json
from holdfast.economics.sizing import size_file
from holdfast.economics.sizing.parallelism import Framework, Recompute
from holdfast.economics.sizing.sizing import RANKED_BY, Wanted, answer
from holdfast.economics.sizing.starting import Printed, load_request
from holdfast.ledger.flops import Precision
from holdfast.record.errors import InputError
from holdfast.run.mesh import MeshShape
from holdfast.wording.parsing import count

ROWS_USUAL = 10


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    file: Path | None = argument(required=False, type=click.Path(path_type=Path))
    model: str | None = option("A model that `holdfast reference` lists, such as llama3-70b.", metavar="NAME")
    chip: str | None = option("Such as h100, or the name in nvidia-smi.")
    gpus: int | None = option("GPUs of the run.", type=count)
    gpus_per_node: int | None = option(
        "GPUs of a node.  [default: as NVIDIA builds]", type=count, metavar="N"
    )
    spare_nodes: int | None = option(
        "Nodes that stand by.", type=click.IntRange(0, size_file.SPARE_NODES_MAX), metavar="N"
    )
    precision: Precision | None = option(
        "Precision of the arithmetic.  [default: bf16]", type=click.Choice(get_args(Precision))
    )
    sequence_tokens: int | None = option("--seq", "Tokens per sequence.", type=count, metavar="N")
    global_batch: int | None = option("Sequences per step, all GPUs together.", type=count, metavar="N")
    tokens: int | None = option("Tokens to train on in all, such as 15t.", type=count)
    lanes: int | None = option("Lanes, for a script that joins Holdfast.", type=count, metavar="L")
    tp: int | None = option("Tensor parallel.", type=count, metavar="N")
    pp: int | None = option("Pipeline parallel; with --tp, that layout is checked.", type=count, metavar="N")
    cp: int | None = option("Context parallel.", type=count, metavar="N")
    dp: int | None = option("Data parallel.  [default: the remaining GPUs]", type=count, metavar="N")
    shard: str | None = option(
        "Members of one replica, as for `holdfast run`: 4, or shard=2,tp=2.",
        metavar="N|DIM=N,...",
    )
    ep: int | None = option("Expert parallel, a part of data x context parallel.", type=count, metavar="N")
    interleave: int | None = option("Stages of the pipeline on each GPU.", type=count, metavar="N")
    micro_batch: int | None = option("Sequences that a replica computes at once.", type=count, metavar="N")
    zero: str | None = option("ZeRO stage; 3 is FSDP.", type=click.Choice(["0", "1", "2", "3"]))
    recompute: Recompute | None = option(
        "Recomputation of activations.", type=click.Choice(["none", "selective", "full"])
    )
    framework: Framework | None = option(
        "The framework whose memory use is assumed.  [default: any]",
        type=click.Choice(["megatron", "torchtitan"]),
    )
    survive_node_loss: bool = option("Only layouts that survive the loss of a node.")
    limit: int = option("Rows shown.", type=click.IntRange(min=1), default=ROWS_USUAL, show_default=True)
    prices_path: Path | None = shared(prices_option)
    as_json: bool = shared(json_option)


@click.command("size")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Rank the layouts that fit a model and a cluster by the time a step takes, or check the one given.

    A wrong layout is refused with the reason and the nearest right ones. FILE (TOML) may hold the same as the
    flags, and more: a model by its dimensions, the data loader. `holdfast run --size FILE` checks it, too.

    Example: holdfast plan size --model llama3-70b --gpus 1024 --chip h100
    """
    said = size_file.merged(load_request(given.file) if given.file else size_file.Request(), _request(given))
    prices = load_planning_prices(given.prices_path)
    asked = size_file.understood(said, prices, must_survive=given.survive_node_loss)
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


def _request(given: _Flags) -> size_file.Request:
    return size_file.Request(
        model=size_file.ModelTable(name=given.model),
        cluster=msgspec.convert(given, size_file.ClusterTable, from_attributes=True),
        training=msgspec.convert(given, size_file.TrainingTable, from_attributes=True),
        layout=_layout(given),
    )


def _layout(given: _Flags) -> Wanted:
    names = (name for name in Wanted.__struct_fields__ if name not in ("zero", "shard"))
    settled = {name: getattr(given, name) for name in names}
    zero = None if given.zero is None else int(given.zero)
    if given.shard is not None:
        named = [name for name in ("tp", "pp", "cp", "ep", "interleave", "zero") if getattr(given, name)]
        if named:
            raise InputError(
                f"--{named[0]} cannot be given beside --shard.", hint="Write --shard shard=4,tp=2,pp=2."
            )
        sharded = layout_of(MeshShape.parse(given.shard))
        settled |= {"tp": sharded.tp, "pp": sharded.pp, "shard": sharded.shard}
    return msgspec.convert({**settled, "zero": zero}, Wanted)


def layout_of(mesh: MeshShape) -> Wanted:
    """The layout of `--shard`; an empty one if the model is not sharded."""
    if not mesh.sizes:
        return Wanted()
    return Wanted(tp=mesh.size("tp"), pp=mesh.size("pp"), shard=mesh.slices)
