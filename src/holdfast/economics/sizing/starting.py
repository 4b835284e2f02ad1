"""A run's size on the command line: its file, the output, and doubts before `holdfast run` starts."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.economics.pricing.prices import DEFAULTS
from holdfast.economics.sizing.parallelism import SizingCase, balance
from holdfast.economics.sizing.rules import BALANCE_MIN, lane_balance_sentence
from holdfast.economics.sizing.size_file import Request, merged, read, understood
from holdfast.economics.sizing.sizing import Sized, Wanted, answer
from holdfast.ledger.references import PublishedRate
from holdfast.record.errors import InputError
from holdfast.record.files import parsed


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `plan size --json`: the layouts, best first, and the inputs.

    memory_bytes  memory of a GPU; usable_bytes: the same after headroom
    ranked_by     the order of the layouts
    rate          the published runs behind the pace
    assumed       values that the user did not give, in words
    """

    case: SizingCase
    memory_bytes: int
    usable_bytes: int
    usd_per_gpu_hour: float
    sized: tuple[Sized, ...]
    ranked_by: str
    rate: PublishedRate
    assumed: tuple[str, ...]


def load_request(path: Path) -> Request:
    """The request in the file; error messages name the file."""
    return parsed(path, read, what="size file", hint="docs/sizing.md shows such a file.")


class Dimensions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the run that `holdfast run` is about to start. cpus_per_node: of this machine, shared by
    its nodes. layout: the parts that its flags settle.
    """

    nodes_min: int
    nodes_max: int
    slots: int
    cpus_per_node: int
    layout: Wanted = Wanted()

    @property
    def members(self) -> int:
        return self.nodes_max * self.slots


def run_doubts(path: Path, planned: Dimensions) -> Iterator[str]:
    """Doubts about starting such a run, by its size file; `InputError` if it cannot work.

    The sentences are the same as in `holdfast plan size` for the same file. Prices play no part.
    """
    request = _as_planned(load_request(path), path, planned)
    question = understood(request, DEFAULTS).question
    if not question.wanted.is_layout:
        raise InputError(
            f"{path} does not say how the model is split over the GPUs.",
            hint="Give lanes in [training] for a script that joins, or tp and pp in [layout].",
        )
    yield from answer(question).sized[0].warnings
    lanes = question.case.training.lanes
    fewer = {planned.nodes_max - 1, planned.nodes_min} & set(range(planned.nodes_min, planned.nodes_max))
    each = (question.wanted.tp or 1) * (question.wanted.pp or 1)
    counts = [nodes * planned.slots // each for nodes in sorted(fewer) if nodes]
    if lanes is not None:
        members = planned.members // each
        worst = min(counts, key=lambda members: balance(lanes, members), default=members)
        if balance(lanes, worst) < min(BALANCE_MIN, balance(lanes, members)):
            yield f"With fewer nodes, {lane_balance_sentence(lanes, worst)}"
    elif counts:
        yield from _doubts_of_fewer(request, planned)


def _as_planned(request: Request, path: Path, planned: Dimensions) -> Request:
    """The file's request with the GPUs of the run; the file must not name other numbers."""
    brought = {"gpus": planned.members, "gpus_per_node": planned.slots}
    for name, number in brought.items():
        said = getattr(request.cluster, name)
        if said not in (None, number):
            words = name.replace("_", " ").replace("gpus", "GPUs")
            raise InputError(
                f"{path} is for {said:,} {words}, and this run has {number:,}.",
                hint=f"Leave {name} out of [cluster], or start as many.",
            )
    loader = request.loader
    if loader is not None and loader.cpus_per_node is None:
        loader = msgspec.structs.replace(loader, cpus_per_node=planned.cpus_per_node)
    cluster = msgspec.structs.replace(request.cluster, **brought)
    return merged(
        msgspec.structs.replace(request, cluster=cluster, loader=loader), Request(layout=planned.layout)
    )


def _doubts_of_fewer(request: Request, planned: Dimensions) -> Iterator[str]:
    """A doubt if the layout does not work with the fewest nodes that the run may continue with."""
    cluster = msgspec.structs.replace(request.cluster, gpus=planned.nodes_min * planned.slots)
    layout = msgspec.structs.replace(request.layout, dp=None)
    try:
        answer(
            understood(msgspec.structs.replace(request, cluster=cluster, layout=layout), DEFAULTS).question
        )
    except InputError as error:
        yield f"With {planned.nodes_min} of {planned.nodes_max} nodes it cannot go on: {error.sentence}"
