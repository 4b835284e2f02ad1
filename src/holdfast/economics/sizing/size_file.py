"""Turn a user's description of a run's size, from a small file or flags, into a sizing question.

The file is TOML with the tables [model], [cluster], [training], [layout] and [loader]; docs/sizing.md
describes it. Missing values are replaced by usual ones, and each assumption is named in words. This module
does no I/O.
"""

import tomllib
from typing import Annotated, TypeVar

import msgspec

from holdfast.economics.pricing.prices import Prices
from holdfast.economics.sizing.parallelism import (
    HEADROOM_SHARE,
    Cluster,
    Count,
    Framework,
    SizingCase,
    Training,
    Zero,
)
from holdfast.economics.sizing.rules import Loader
from holdfast.economics.sizing.sizing import SizingQuestion, Wanted, suitable_batch
from holdfast.ledger.flops import Chip, Precision, Shape, chip_named
from holdfast.ledger.references import KnownModel, published
from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE

SEQUENCE_TOKENS_USUAL = 8192
TOKENS_PER_PARAM_USUAL = 20
GPUS_PER_NODE: dict[Chip, int] = {"gb200": 4, "gb300": 4}
GPUS_PER_NODE_USUAL = 8
"""NVIDIA's DGX and HGX boards; a compute tray of the NVL72 racks has 4."""
LAYERS_MAX = 10_000
"""A limit, because every way to cut layers into stages is tried."""
LANES_MAX = 1 << 16
"""The same as in `holdfast.train`."""

SPARE_NODES_MAX = 10**6
GRADIENT_BYTES_MAX = 8

Amount = Annotated[float, msgspec.Meta(gt=0)]

_DIMENSIONS = ("layers", "hidden", "heads", "ffn", "vocab")
"""Dimensions that must be given for a model that is not known by name."""


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model by name, or by its dimensions. None, here and below: not given."""

    name: str | None = None
    layers: Annotated[int, msgspec.Meta(ge=1, le=LAYERS_MAX)] | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None
    vocab: Count | None = None
    gated: bool = True
    tied: bool = False
    experts: Count = 1
    active_experts: Count = 1
    shared_ffn: Annotated[int, msgspec.Meta(ge=0)] = 0


class ClusterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    chip: str | None = None
    gpus: Count | None = None
    gpus_per_node: Count | None = None
    spare_nodes: Annotated[int, msgspec.Meta(ge=0, le=SPARE_NODES_MAX)] | None = None
    precision: Precision | None = None


class TrainingTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sequence_tokens: Count | None = None
    global_batch: Count | None = None
    tokens: Amount | None = None
    lanes: Count | None = None
    gradient_bytes: Annotated[int, msgspec.Meta(ge=1, le=GRADIENT_BYTES_MAX)] | None = None
    dropout: bool | None = None
    framework: Framework | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelTable = ModelTable()
    cluster: ClusterTable = ClusterTable()
    training: TrainingTable = TrainingTable()
    layout: Wanted = Wanted()
    loader: Loader | None = None


class Understood(msgspec.Struct, frozen=True, kw_only=True):
    """The question from a request, and the assumptions made for it, in words."""

    question: SizingQuestion
    assumed: tuple[str, ...]


def read(text: str) -> Request:
    """The request in a file; `InputError` if it is not valid."""
    try:
        return msgspec.convert(tomllib.loads(text), Request)
    except msgspec.ValidationError as error:
        raise InputError(
            f"The size file is not understood: {error}.", hint="docs/sizing.md shows what it may say."
        ) from None
    except UNDECODABLE as error:
        raise InputError(
            f"The size file is not TOML: {error}.", hint="docs/sizing.md shows how to write one."
        ) from None


def merged(said: Request, over: Request) -> Request:
    """The request `said`, overridden by the values of `over`."""
    return Request(
        model=over.model if over.model != ModelTable() else said.model,
        cluster=_merged(said.cluster, over.cluster),
        training=_merged(said.training, over.training),
        layout=_merged(said.layout, over.layout),
        loader=over.loader or said.loader,
    )


def understood(request: Request, prices: Prices, *, must_survive: bool = False) -> Understood:
    """The question, with usual values in place of missing ones."""
    assumed: list[str] = []
    name, model = _model(request.model)
    shape = model.shape
    cluster = _cluster(request.cluster, model, assumed)
    training = _training(request.training, cluster, model, assumed)
    price = prices.planned(cluster.chip)
    if price.assumed:
        assumed.append(f"{prices.currency.said(price.value)} a GPU-hour ({price.source})")
    assumed.append(
        f"{100 * HEADROOM_SHARE:.0f} % of a GPU's memory kept free, if possible, for uses no formula covers"
    )
    question = SizingQuestion(
        case=SizingCase(name=name, shape=shape, cluster=cluster, training=training),
        usd_per_gpu_hour=price.value,
        wanted=_wanted(request.layout, training),
        loader=request.loader,
        has_free_batch=request.training.global_batch is None and training.global_batch != model.global_batch,
        must_survive=must_survive,
    )
    return Understood(question=question, assumed=tuple(assumed))


_Said = TypeVar("_Said", bound=msgspec.Struct)


def _merged(said: _Said, over: _Said) -> _Said:
    given = {name: value for name, value in msgspec.structs.asdict(over).items() if value is not None}
    return msgspec.structs.replace(said, **given)


def _model(said: ModelTable) -> tuple[str, KnownModel]:
    """The model's name, and its known data or given dimensions."""
    if said.name is not None and said == ModelTable(name=said.name):
        known = published().models
        if said.name.lower() not in known:
            raise InputError(f"The model {said.name!r} is not known.", hint=f"Known are {', '.join(known)}.")
        return said.name.lower(), known[said.name.lower()]
    missing = [name for name in _DIMENSIONS if getattr(said, name) is None]
    if missing:
        raise InputError(
            f"The model is not fully described: {', '.join(missing)} missing.",
            hint="Name one that `holdfast reference` lists, or give all dimensions in the table [model].",
        )
    return said.name or "the model", KnownModel(shape=_shape(said), source="")


def _shape(said: ModelTable) -> Shape:
    """The shape of a model whose dimensions are complete."""
    dimensions = msgspec.structs.asdict(said)
    heads, hidden = dimensions["heads"], dimensions["hidden"]
    if said.head_dim is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide a hidden size of {hidden}.", hint="Give head_dim.")
    if said.active_experts > said.experts:
        raise InputError(
            f"{said.active_experts} experts are active, but the model has only {said.experts}.",
            hint="Check experts and active_experts.",
        )
    del dimensions["name"]
    implied = {"kv_heads": said.kv_heads or heads, "head_dim": said.head_dim or hidden // heads}
    return Shape(**{**dimensions, **implied})


def _cluster(said: ClusterTable, model: KnownModel, assumed: list[str]) -> Cluster:
    if said.chip is None or said.gpus is None:
        missing = " and ".join(name for name in ("chip", "gpus") if getattr(said, name) is None)
        raise InputError(
            f"The cluster is not described: {missing} missing.",
            hint="Give for instance 1024 GPUs, chip h100.",
        )
    chip = chip_named(said.chip)
    per_node = said.gpus_per_node
    if per_node is None:
        per_node = GPUS_PER_NODE.get(chip, GPUS_PER_NODE_USUAL)
        assumed.append(f"{per_node} GPUs a node, as NVIDIA builds them")
    if said.precision is None and model.precision not in (None, "bf16"):
        assumed.append(
            f"bf16 arithmetic; it was trained with {model.precision}: say --precision {model.precision}"
        )
    return Cluster(
        chip=chip,
        gpus=said.gpus,
        gpus_per_node=per_node,
        spare_nodes=said.spare_nodes or 0,
        precision=said.precision or "bf16",
    )


def _training(said: TrainingTable, cluster: Cluster, model: KnownModel, assumed: list[str]) -> Training:
    _check_lanes(said.lanes)
    sequence, batch, tokens = said.sequence_tokens, said.global_batch, said.tokens
    if sequence is None:
        sequence = model.sequence_tokens or SEQUENCE_TOKENS_USUAL
        whose = "it" if model.sequence_tokens else "Llama 3"
        assumed.append(f"sequences of {sequence:,} tokens, as {whose} was trained with")
    if batch is None and said.lanes is None and model.global_batch:
        batch = model.global_batch
        assumed.append(f"a global batch of {batch:,} sequences, as it was trained with")
    if batch is None:
        batch = suitable_batch(said.lanes or cluster.gpus, sequence)
        assumed.append(
            f"a global batch of {batch:,} sequences: about 4 million tokens, as Llama 3 405B begins with"
        )
    if tokens is None:
        tokens = TOKENS_PER_PARAM_USUAL * model.shape.transformer().active_params
        assumed.append(f"{tokens / 1e9:,.0f} billion tokens: 20 a parameter (Hoffmann et al. 2022)")
    return Training(
        sequence_tokens=sequence,
        global_batch=batch,
        tokens=round(tokens),
        lanes=said.lanes,
        gradient_bytes=said.gradient_bytes or 4,
        dropout=said.dropout or False,
        framework=said.framework,
    )


def _check_lanes(lanes: int | None) -> None:
    if lanes is None or (lanes & (lanes - 1) == 0 and lanes <= LANES_MAX):
        return
    below = 1 << (min(lanes, LANES_MAX).bit_length() - 1)
    above = f" or {2 * below}" if lanes < LANES_MAX else ""
    raise InputError(
        f"{lanes} lanes are not a power of two up to {LANES_MAX}: gradients are added along a binary tree.",
        hint=f"Take {below}{above}.",
    )


def _wanted(said: Wanted, training: Training) -> Wanted:
    """The settled parts of a layout. With lanes, every member holds the whole model, or the members of a
    replica do together; dimensions that a layout does not name are not split.
    """
    if training.lanes is not None or said.shard is not None:
        zero: Zero = 3 if (said.shard or 1) > 1 else 0
        return _merged(Wanted(tp=1, pp=1, cp=1, ep=1, interleave=1, zero=zero), said)
    return _merged(Wanted(cp=1), said) if said.is_layout else said
