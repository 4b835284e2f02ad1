"""Right-sizing: which layouts fit a model and a cluster, their costs, and the nearest fit for one that does
not.

All possible layouts are tried: there are a few thousand at most. Pure arithmetic, without numpy, so that
`holdfast run` can ask before it starts anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import inf, log2
from typing import TypeVar

import msgspec

from holdfast.economics.sizing.coverage import ReplicaLoss
from holdfast.economics.sizing.memory import (
    LOW_SHARE,
    MemoryRange,
    MemoryUse,
    least_state_bytes,
    memory,
    memory_range,
)
from holdfast.economics.sizing.pace import StepPace, pace, setup_of
from holdfast.economics.sizing.parallelism import (
    Count,
    Parallelism,
    Recompute,
    SizingCase,
    Zero,
    fills_with_ends,
    micro_batches,
)
from holdfast.economics.sizing.rules import Loader, loader_refusals, loader_warnings, refusals, warnings
from holdfast.economics.sizing.survival import Survival, replica_losses, survival
from holdfast.ledger.references import MfuReference, PublishedRate, published_rate
from holdfast.record.errors import InputError
from holdfast.wording.units import DAY_S

GIB = 2**30
MICRO_BATCHES = (1, 2, 4, 8, 16)
CP_TOKENS_MIN = 8192
"""Context parallelism is for sequences too long for one GPU: it is not proposed if a GPU would get fewer
tokens than with Llama 3's longest sequences (131,072 tokens, CP 16; Table 4)."""
BATCH_TOKENS_USUAL = 4_000_000
"""Tokens of a step if not given: what Llama 3 405B begins with (section 3.4.1)."""
RANKED_BY = (
    "time of a step, which is also the cost; ties by whether memory may run out, then by a lost node, "
    "then by the overhead of the layout, then by memory"
)
NEAREST_SHOWN = 3
SHARD_OCTAVES = 4
"""How many times the requested ranks are doubled in the search for the nearest number that fits."""
TRIES_MAX = 256
"""How many numbers of GPUs are tried in each direction, in the search for the nearest that fit."""

_Choice = TypeVar("_Choice")


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settled parts of a layout; None: to be chosen."""

    tp: Count | None = None
    pp: Count | None = None
    cp: Count | None = None
    dp: Count | None = None
    ep: Count | None = None
    interleave: Count | None = None
    micro_batch: Count | None = None
    zero: Zero | None = None
    recompute: Recompute | None = None
    shard: Count | None = None

    @property
    def is_split(self) -> bool:
        """Whether any division of the GPUs is settled."""
        return any(ways is not None for ways in (self.tp, self.pp, self.cp, self.dp, self.ep))

    @property
    def is_layout(self) -> bool:
        """Whether the split of the model is settled, so that it is checked rather than chosen."""
        return self.tp is not None and self.pp is not None


class SizingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A case, the settled parts of its layout, and the price of a GPU-hour.

    has_free_batch  whether the global batch was chosen to suit the GPUs, and may be chosen again
    must_survive    whether a layout must survive the loss of a node
    """

    case: SizingCase
    usd_per_gpu_hour: float
    wanted: Wanted = Wanted()
    loader: Loader | None = None
    has_free_batch: bool = False
    must_survive: bool = False


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that works, its needs and its cost.

    micro_batches  one after the other in a step
    memory_bytes   the likeliest; memory: its parts; memory_range: from published runs
    may_run_out    whether the range exceeds the GPU's memory
    losses         the effect of a lost rank, node and rack on the replicas of `holdfast run --shard`
    """

    layout: Parallelism
    micro_batches: int
    memory_bytes: int
    memory: MemoryUse
    memory_range: MemoryRange
    may_run_out: bool
    pace: StepPace
    days: float
    usd: float
    survival: Survival
    losses: tuple[ReplicaLoss, ...] = ()
    warnings: tuple[str, ...] = ()


class SizingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The layouts that fit, best first. rate: the published runs behind their pace."""

    sized: tuple[Sized, ...]
    rate: PublishedRate


def answer(question: SizingQuestion) -> SizingAnswer:
    """The layouts that fit, the quickest first; if none does, `InputError` with the nearest that would."""
    rate = published_rate(setup_of(question.case))
    best: dict[tuple[int, ...], Sized] = {}
    for layout in fitting(question):
        sized = _sized(question, layout, rate.reference)
        if question.must_survive and not sized.survival.survives:
            continue
        split = (layout.tp, layout.pp, layout.cp, layout.ep)
        if split not in best or _rank(sized) < _rank(best[split]):
            best[split] = sized
    if not best:
        raise _refusal(question)
    return SizingAnswer(sized=tuple(sorted(best.values(), key=_rank)), rate=rate)


def fitting(question: SizingQuestion) -> Iterator[Parallelism]:
    """The layouts that break no rule and fit into memory by formula; if none does, those that may fit.

    Only a layout whose whole range is beyond the memory does not fit: some published runs fit although the
    formula says otherwise.
    """
    case, found = question.case, False
    for layout in _lawful(question):
        if memory(case, layout).total_bytes <= case.cluster.usable_bytes:
            found = True
            yield layout
    if found:
        return
    for layout in _lawful(question):
        if memory_range(case, layout).low_bytes <= case.cluster.memory_bytes:
            yield layout


def _lawful(question: SizingQuestion) -> Iterator[Parallelism]:
    """All layouts that break no rule of parallelism or of the loader."""
    case, loader = question.case, question.loader
    for layout in _layouts(question):
        if next(refusals(case, layout), None) is not None:
            continue
        if loader is None or next(loader_refusals(case, layout, loader), None) is None:
            yield layout


def nearest_gpus(question: SizingQuestion) -> tuple[int, ...]:
    """The next smaller and the next larger number of GPUs for which a layout exists."""
    gpus, node = question.case.cluster.gpus, question.case.cluster.gpus_per_node
    whole_above = range(gpus - gpus % node + node, gpus + TRIES_MAX * node, node)
    counts_above = chain(range(gpus + 1, node), whole_above)
    counts_below = (count for count in range(gpus - 1, 0, -1) if count < node or count % node == 0)
    found = (
        next((count for count in islice(counts, TRIES_MAX) if _has_layout(question, count)), None)
        for counts in (counts_below, counts_above)
    )
    return tuple(count for count in found if count is not None)


def suitable_batch(gpus: int, sequence_tokens: int) -> int:
    """A batch of about BATCH_TOKENS_USUAL tokens, in sequences, that this many GPUs can share evenly.

    It is the odd part of the number of GPUs times a power of two.
    """
    odd = gpus // (gpus & -gpus)
    return odd << max(0, round(log2(BATCH_TOKENS_USUAL / sequence_tokens / odd)))


def memory_sentence(case: SizingCase, layout: Parallelism) -> str:
    """The memory that the layout needs, part by part, and the memory of the GPU."""
    taken = memory(case, layout)
    parts = ", ".join(
        f"{name.removesuffix('_bytes')} {getattr(taken, name) / GIB:,.1f}"
        for name in taken.__struct_fields__
        if getattr(taken, name) >= GIB / 20
    )
    span = memory_range(case, layout)
    return (
        f"{case.name} as {layout} needs {range_gib(span)} GiB a GPU (by formula {parts}), where the "
        f"{case.cluster.chip.upper()} has {case.cluster.memory_bytes / GIB:,.1f} GiB."
    )


def range_gib(span: MemoryRange) -> str:
    """In words, as in `53.6 to 90.2`."""
    return f"{span.low_bytes / GIB:,.1f} to {span.high_bytes / GIB:,.1f}"


def _has_layout(question: SizingQuestion, gpus: int) -> bool:
    """Whether a layout exists on this many GPUs, with the other settings unchanged."""
    case = question.case
    training = case.training
    if question.has_free_batch:
        batch = suitable_batch(training.lanes or gpus, training.sequence_tokens)
        training = msgspec.structs.replace(training, global_batch=batch)
    cluster = msgspec.structs.replace(case.cluster, gpus=gpus)
    if LOW_SHARE * least_state_bytes(case.shape, training, gpus) > cluster.memory_bytes:
        return False
    other = msgspec.structs.replace(
        question,
        case=msgspec.structs.replace(case, cluster=cluster, training=training),
        wanted=msgspec.structs.replace(question.wanted, dp=None),
    )
    return next(fitting(other), None) is not None


def _rank(sized: Sized) -> tuple[float, bool, float, float, int]:
    spent, after = sized.pace, sized.survival
    slowdown = after.slowdown if after.survives and after.slowdown is not None else inf
    return spent.step_s, sized.may_run_out, round(slowdown, 2), spent.busy_s, sized.memory_bytes


def _sized(question: SizingQuestion, layout: Parallelism, reference: MfuReference) -> Sized:
    case = question.case
    needed, stepping = memory(case, layout), pace(case, layout, reference)
    span = memory_range(case, layout)
    after_loss = survival(case, layout, reference)
    days = case.training.tokens / case.training.tokens_per_step * stepping.step_s / DAY_S
    return Sized(
        layout=layout,
        micro_batches=micro_batches(case, layout),
        memory_bytes=needed.total_bytes,
        memory=needed,
        memory_range=span,
        may_run_out=span.high_bytes > case.cluster.memory_bytes,
        pace=stepping,
        days=days,
        usd=days * 24 * case.cluster.paid_gpus * question.usd_per_gpu_hour,
        survival=after_loss,
        losses=replica_losses(case, layout),
        warnings=(
            *warnings(case, layout),
            *_memory_warnings(case, span),
            *_survival_warnings(case, after_loss),
            *(loader_warnings(case, layout, question.loader, stepping.step_s) if question.loader else ()),
        ),
    )


def _memory_warnings(case: SizingCase, span: MemoryRange) -> Iterator[str]:
    if span.high_bytes > case.cluster.memory_bytes:
        yield (
            "It may run out of memory: published runs with the same result by formula take "
            f"{range_gib(span)} GiB, and the {case.cluster.chip.upper()} has "
            f"{case.cluster.memory_bytes / GIB:,.1f} GiB. Measure one step first."
        )


def _survival_warnings(case: SizingCase, found: Survival) -> Iterator[str]:
    """A run on a single node is not expected to survive, so there is no warning."""
    if not found.survives and case.cluster.gpus > case.cluster.gpus_per_node:
        yield f"It does not survive the loss of a node: {found.sentence}."


# ---- what is possible ------------------------------------------------------------------------------------


def _layouts(question: SizingQuestion) -> Iterator[Parallelism]:
    """All layouts to consider, right or wrong; settled parts are not varied."""
    case, wanted = question.case, question.wanted
    gpus = case.cluster.gpus
    for tp in _choices(wanted.tp, _powers_of_two(case.cluster.domain_gpus)):
        for pp in _choices(wanted.pp, _pipelines(case)):
            for cp in _choices(wanted.cp, _powers_of_two(case.training.sequence_tokens // CP_TOKENS_MIN)):
                replica = tp * pp * cp
                dp = wanted.dp or max(1, gpus // replica)
                if gpus % replica == 0 or wanted.is_split:
                    yield from _variants(question, Parallelism(tp=tp, pp=pp, cp=cp, dp=dp))


def _variants(question: SizingQuestion, split: Parallelism) -> Iterator[Parallelism]:
    """The layout with all settings for experts, micro-batches, interleaving and memory."""
    case, wanted = question.case, question.wanted
    for ep in _choices(wanted.ep, _powers_of_two(case.shape.experts)):
        for interleave in _choices(wanted.interleave, _interleaves(case, split.pp)):
            for micro_batch in _choices(wanted.micro_batch, MICRO_BATCHES):
                for zero in _choices(wanted.zero, _zeros(split)):
                    for recompute in _choices(wanted.recompute, ("selective", "full")):
                        yield msgspec.structs.replace(
                            split,
                            ep=ep,
                            interleave=interleave,
                            micro_batch=micro_batch,
                            zero=zero,
                            recompute=recompute,
                            shard=wanted.shard,
                        )


def _choices(settled: _Choice | None, possible: Iterable[_Choice]) -> tuple[_Choice, ...]:
    return tuple(possible) if settled is None else (settled,)


def _powers_of_two(most: int) -> tuple[int, ...]:
    """Powers of two up to `most`, and always 1."""
    return tuple(1 << exponent for exponent in range(max(1, most.bit_length())))


def _pipelines(case: SizingCase) -> Iterator[int]:
    """Numbers of stages that divide the layers, or the layers and the two ends."""
    layers = case.shape.layers
    most = min(layers, case.cluster.gpus)
    return (pp for pp in range(1, most + 1) if layers % pp == 0 or fills_with_ends(layers, pp))


def _interleaves(case: SizingCase, pp: int) -> Iterator[int]:
    layers = case.shape.layers
    most = (layers + 2) // pp if pp > 1 else 1
    return (
        times
        for times in range(1, most + 1)
        if times == 1 or layers % (pp * times) == 0 or fills_with_ends(layers, pp * times)
    )


def _zeros(split: Parallelism) -> tuple[Zero, ...]:
    """Stages of ZeRO to try. With a pipeline, ZeRO 3 would gather every weight again for each micro-batch."""
    if split.dp * split.cp == 1:
        return (0,)
    return (1, 2) if split.pp > 1 else (1, 2, 3)


# ---- if nothing fits -------------------------------------------------------------------------------------


def _refusal(question: SizingQuestion) -> InputError:
    """Why no layout fits, and the nearest question with an answer."""
    case = question.case
    if question.must_survive and next(fitting(question), None) is not None:
        return InputError(
            f"{case.name} fits on {case.cluster.gpus:,} GPUs, but no layout survives the loss of a node.",
            hint="Add a spare node, or more nodes.",
        )
    sentence = _reason(question)
    if question.loader and next(fitting(msgspec.structs.replace(question, loader=None)), None):
        return InputError(sentence, hint="The model fits; [loader] needs more shards, or fewer workers.")
    if batches := _nearest_batches(question):
        verb = "batches that fit are" if len(batches) > 1 else "batch that fits is"
        return InputError(sentence, hint=f"The nearest global {verb} {_listed([f'{n:,}' for n in batches])}.")
    nearest = _nearest_layouts if question.wanted.shard is None else _nearest_shards
    if near := nearest(question) if question.wanted.is_split else []:
        verb = "that fit are" if len(near) > 1 else "that fits is"
        return InputError(sentence, hint=f"The nearest {verb} {_listed(near)}.")
    if gpus := nearest_gpus(question):
        verb = "numbers of GPUs that fit are" if len(gpus) > 1 else "number of GPUs that fits is"
        return InputError(sentence, hint=f"The nearest {verb} {_listed([f'{count:,}' for count in gpus])}.")
    if case.training.lanes is not None:
        return InputError(
            sentence,
            hint="With lanes every member, or replica of --shard, holds the whole model and needs a lane.",
        )
    return InputError(sentence, hint="Use a smaller model, shorter sequences, or a chip with more memory.")


def _reason(question: SizingQuestion) -> str:
    """The reason for the layout that comes closest to fitting."""
    case, loader = question.case, question.loader
    lawful: list[Parallelism] = []
    broken: list[tuple[str, ...]] = []
    for layout in _layouts(question):
        found = (*refusals(case, layout), *(loader_refusals(case, layout, loader) if loader else ()))
        if found:
            broken.append(found)
        else:
            lawful.append(layout)
    if lawful:
        return memory_sentence(case, min(lawful, key=lambda one: memory_range(case, one).low_bytes))
    return min(broken, key=len)[0]


def _nearest_batches(question: SizingQuestion) -> list[int]:
    """The next smaller and the next larger global batch that fit; none if the batch is not the problem."""
    batch = question.case.training.global_batch
    if question.has_free_batch or not all(any(refusals(question.case, one)) for one in _layouts(question)):
        return []
    lanes = question.case.training.lanes
    each = {lanes} if lanes else {layout.dp * layout.micro_batch for layout in _layouts(question)}
    below = sorted({batch // one * one for one in each} - {0}, reverse=True)
    above = sorted({(batch // one + 1) * one for one in each})
    found = (
        next((other for other in islice(counts, TRIES_MAX) if _fits_batch(question, other)), None)
        for counts in (below, above)
    )
    return [other for other in found if other is not None]


def _fits_batch(question: SizingQuestion, batch: int) -> bool:
    training = msgspec.structs.replace(question.case.training, global_batch=batch)
    case = msgspec.structs.replace(question.case, training=training)
    return next(fitting(msgspec.structs.replace(question, case=case)), None) is not None


def _nearest_layouts(question: SizingQuestion) -> list[str]:
    """The nearest layouts on the same GPUs, by distance in octaves; with ZeRO if that was settled too."""
    wanted = question.wanted
    splits: dict[str, Parallelism] = {}
    for layout in fitting(msgspec.structs.replace(question, wanted=Wanted())):
        name = str(layout) if wanted.zero is None else f"{layout} with ZeRO {layout.zero}"
        splits.setdefault(name, layout)
    return _nearest(splits, wanted, ("tp", "pp", "cp", "ep"))


def _nearest_shards(question: SizingQuestion) -> list[str]:
    """The nearest layouts, written as `--shard`."""
    wanted = question.wanted
    assert wanted.shard is not None
    splits: dict[str, Parallelism] = {}
    for shard in _powers_of_two(min(question.case.cluster.gpus, wanted.shard << SHARD_OCTAVES)):
        free = msgspec.structs.replace(wanted, tp=None, pp=None, shard=shard, zero=3 if shard > 1 else 0)
        for layout in fitting(msgspec.structs.replace(question, wanted=free)):
            sizes = {"pp": layout.pp, "shard": shard, "tp": layout.tp}
            said = [f"{name}={size}" for name, size in sizes.items() if size > 1 or name == "shard"]
            splits.setdefault(f"--shard {','.join(said)}", layout)
    return _nearest(splits, wanted, ("tp", "pp", "shard"))


def _nearest(splits: Mapping[str, Parallelism], wanted: Wanted, ways: tuple[str, ...]) -> list[str]:
    def octaves(name: str) -> float:
        near = splits[name]
        return sum(abs(log2((getattr(near, way) or 1) / (getattr(wanted, way) or 1))) for way in ways)

    return sorted(splits, key=octaves)[:NEAREST_SHOWN]


def _listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
