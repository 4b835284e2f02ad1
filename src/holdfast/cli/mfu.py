"""`holdfast mfu`: compute a run's share of the chips' peak, and compare it with published ones."""

from typing import get_args

import click
import msgspec

from holdfast import wording
from holdfast.cli.flags import FiniteRange, flag_of, option, takes
from holdfast.cli.terminal import print_json, say
from holdfast.ledger import flops, references
from holdfast.ledger.utilising import ComparedThroughput, compared_throughput
from holdfast.record.errors import InputError
from holdfast.wording.parsing import count

RATE_MIN, RATE_MAX = 1e-9, 1e18

HARDLY_TRAINING_PERCENT = 1.0
PLAUSIBLE_PERCENT = (5.0, 75.0)
"""An MFU outside these bounds is not plausible: the best published one is 64 %."""

GPUS_PER_NODE_USUAL = 8

_ATTENTION = ("layers", "hidden", "heads", "head_dim")
_DIMENSIONS = (
    *_ATTENTION,
    "kv_heads",
    "ffn",
    "vocab",
    "experts",
    "active_experts",
    "shared_ffn",
    "plain_ffn",
    "tied",
)
"""The flags that describe a model by its dimensions; with --params only those for attention count."""


_RATE = FiniteRange(RATE_MIN, RATE_MAX)


class _Flags(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = option(
        "A model by name, such as llama3-70b, in place of its dimensions.", metavar="NAME"
    )
    params: int | None = option(
        "Parameters, such as 70e9 or 70b; else derived from the dimensions.", type=count
    )
    active_params: int | None = option("With experts: the parameters that one token uses.", type=count)
    layers: int | None = option("Layers.", type=count)
    hidden: int | None = option("Hidden size.", type=count)
    heads: int | None = option("Attention heads.", type=count)
    kv_heads: int | None = option("Key and value heads.  [default: --heads]", type=count)
    head_dim: int | None = option("Width of a head.  [default: --hidden / --heads]", type=count)
    ffn: int | None = option("Inner width of the feed-forward layer, or of one expert.", type=count)
    vocab: int | None = option("Size of the vocabulary.", type=count)
    experts: int | None = option("Experts in each layer.", type=count)
    active_experts: int | None = option("Experts chosen for each token (top-k).", type=count)
    shared_ffn: int | None = option("Inner width of the shared experts, which every token uses.", type=count)
    plain_ffn: bool = option("The feed-forward layer has no gate (not SwiGLU).")
    tied: bool = option("Input table and output head are one matrix.")
    seq: int | None = option("Sequence length in tokens.", type=count)
    packed: str | None = option(
        "Lengths of the documents in a packed sequence, in place of --seq.", metavar="L,L,..."
    )
    tokens_per_s: float | None = option("Tokens a second, of all GPUs together.", type=_RATE)
    step_s: float | None = option("Seconds a step, with --tokens-per-step.", type=_RATE)
    tokens_per_step: int | None = option("Tokens a step, of all GPUs together.", type=count)
    gpus: int = option("How many GPUs computed these tokens.", type=count, required=True)
    chip: str | None = option("Such as h100, or the name in nvidia-smi: 'NVIDIA H100 80GB HBM3'.")
    precision: flops.Precision = option(
        type=click.Choice(get_args(flops.Precision)), default="bf16", show_default=True
    )
    peak_tflops: float | None = option("Dense peak of one GPU, for an unknown chip.", type=_RATE)
    recompute: float = option(
        "Part of the forward pass computed again, 0 to 1.", type=FiniteRange(0, 1), default=0.0
    )
    as_json: bool = option("--json", "Print one JSON object.")


@click.command("mfu")
@takes(_Flags)
def command(given: _Flags) -> None:
    """Compute MFU and HFU, and compare them with the nearest published figure.

    Both conventions for attention are shown: full (PaLM) and causal (Megatron-LM), which counts half of it.

    Example: holdfast mfu --model llama3-70b --seq 8192 --tokens-per-s 60000 --gpus 64 --chip h100
    """
    answer = _answer(given)
    if doubt := _doubt(given, answer):
        say(doubt)
    if given.as_json:
        print_json(answer)
    else:
        _show(answer)


def _answer(flags: _Flags) -> ComparedThroughput:
    chip = flops.chip_named(flags.chip) if flags.chip else None
    throughput = flops.Throughput(
        model=_transformer(flags),
        sequence_tokens=_sequence_tokens(flags),
        tokens_per_s=_tokens_per_s(flags),
        gpus=flags.gpus,
        peak_flops_per_s=_peak_flops_per_s(flags, chip),
        recompute=flags.recompute,
    )
    return compared_throughput(throughput, chip, flags.precision)


def _peak_flops_per_s(flags: _Flags, chip: flops.Chip | None) -> float:
    if flags.peak_tflops is not None:
        return flags.peak_tflops * 1e12
    if chip is None:
        raise InputError("The chip is missing.", hint="Give --chip, or --peak-tflops for an unknown chip.")
    return flops.peak_flops_per_s(chip, flags.precision)


def _transformer(flags: _Flags) -> flops.Transformer:
    """The model: by name, by its parameters and what attention needs, or by all of its dimensions."""
    if flags.model is not None:
        _refuse(flags, "--model", "params", "active_params", *_DIMENSIONS)
        known = references.published().models
        if flags.model.lower() not in known:
            raise InputError(
                f"The model {flags.model!r} is not known.", hint=f"Known are {', '.join(known)}."
            )
        return known[flags.model.lower()].shape.transformer()
    if flags.params is None:
        _refuse(flags, "the dimensions", "active_params")
        return _shape(flags).transformer()
    _refuse(flags, "--params", *(name for name in _DIMENSIONS if name not in _ATTENTION))
    layers, hidden = _require(flags, "layers", "hidden")
    if (flags.active_params or 0) > flags.params:
        raise InputError("--active-params is larger than --params.", hint="Check --active-params.")
    return flops.Transformer(
        params=flags.params,
        active_params=flags.active_params or flags.params,
        layers=layers,
        attention_width=flags.heads * flags.head_dim if flags.heads and flags.head_dim else hidden,
        moe=flags.active_params is not None,
    )


def _shape(flags: _Flags) -> flops.Shape:
    layers, hidden, heads, ffn, vocab = _require(flags, "layers", "hidden", "heads", "ffn", "vocab")
    if flags.head_dim is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide a hidden size of {hidden}.", hint="Give --head-dim.")
    if (flags.experts is None) != (flags.active_experts is None):
        raise InputError("--experts and --active-experts belong together.", hint="Give both or neither.")
    if (flags.active_experts or 1) > (flags.experts or 1):
        raise InputError(
            "--active-experts is larger than --experts.", hint="Check --experts and --active-experts."
        )
    return flops.Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=flags.kv_heads or heads,
        head_dim=flags.head_dim or hidden // heads,
        ffn=ffn,
        vocab=vocab,
        gated=not flags.plain_ffn,
        tied=flags.tied,
        experts=flags.experts or 1,
        active_experts=flags.active_experts or 1,
        shared_ffn=flags.shared_ffn or 0,
    )


def _sequence_tokens(flags: _Flags) -> float:
    if (flags.seq is None) == (flags.packed is None):
        raise InputError(
            "The sequence length is needed once.", hint="Give --seq, or --packed with the lengths."
        )
    if flags.packed is None:
        return float(flags.seq or 0)
    try:
        lengths = [int(length) for length in flags.packed.split(",")]
    except ValueError:
        lengths = [0]
    if min(lengths) < 1:
        raise InputError(
            f"--packed {flags.packed!r} is not a list of lengths.", hint="Write it as 812,1201,2083."
        )
    return flops.packed_sequence_tokens(lengths)


def _tokens_per_s(flags: _Flags) -> float:
    if flags.tokens_per_s is not None:
        _refuse(flags, "--tokens-per-s", "step_s", "tokens_per_step")
        return flags.tokens_per_s
    if flags.step_s is None or flags.tokens_per_step is None:
        raise InputError(
            "The throughput is missing.", hint="Give --tokens-per-s, or --step-s and --tokens-per-step."
        )
    return flags.tokens_per_step / flags.step_s


def _require(flags: _Flags, *names: str) -> list[int]:
    """The values of these flags. Raises `InputError` that names all missing ones."""
    missing = [flag_of(name) for name in names if getattr(flags, name) is None]
    if missing:
        raise InputError(
            f"The model is not fully described: {', '.join(missing)} missing.",
            hint="Give --model NAME; or --params, --layers and --hidden; or all dimensions.",
        )
    return [getattr(flags, name) for name in names]


def _refuse(flags: _Flags, chosen: str, *names: str) -> None:
    """Raise `InputError` if any of these is given, too: it would have no effect."""
    for name in names:
        if getattr(flags, name):
            raise InputError(f"With {chosen}, {flag_of(name)} has no effect.", hint="Leave one of them out.")


def _doubt(flags: _Flags, answer: ComparedThroughput) -> str | None:
    """One sentence on the input that is probably wrong, if the result is not plausible.

    Judged with causal attention: on long sequences the full convention counts work that is not done.
    """
    mfu, hfu = answer.causal.mfu_percent, answer.causal.hfu_percent
    if mfu > 100:
        return f"An MFU of {mfu:,.0f} % is impossible. {_overcounted(flags, answer)}"
    if hfu > 100:
        return f"An HFU of {hfu:,.0f} % is impossible. Is --recompute {wording.plain(flags.recompute)} right?"
    if mfu < HARDLY_TRAINING_PERCENT:
        return f"An MFU of {wording.number(mfu, 2)} % is hardly training. {_undercounted(flags, mfu)}"
    return None


def _overcounted(flags: _Flags, answer: ComparedThroughput) -> str:
    mfu = answer.causal.mfu_percent
    if answer.chip is not None and flags.peak_tflops is None:
        flops_per_s = mfu * answer.throughput.peak_flops_per_s
        for precision in flops.precisions(answer.chip):
            share = flops_per_s / flops.peak_flops_per_s(answer.chip, precision)
            if share < mfu and _plausible(share):
                said = f"With {precision} it would be about {share:.0f} %."
                return f"Is --precision {flags.precision} right? {said}"
    if _plausible(mfu / GPUS_PER_NODE_USUAL):
        guess = f"{mfu / GPUS_PER_NODE_USUAL:.0f} %"
        return (
            f"Does --gpus {flags.gpus} count nodes? With {GPUS_PER_NODE_USUAL} GPUs each it would be {guess}."
        )
    return f"Check {_throughput_flags(flags)} and the size of the model."


def _undercounted(flags: _Flags, mfu: float) -> str:
    if _plausible(mfu * flags.gpus):
        together = f"{mfu * flags.gpus:.0f} %"
        return f"Is {_throughput_flags(flags)} per GPU? For all {flags.gpus} it would be {together}."
    if flags.step_s is not None and _plausible(mfu * 1000):
        taken = f"Is --step-s {wording.plain(flags.step_s)} in milliseconds?"
        return f"{taken} Then it would be {mfu * 1000:.0f} %."
    return f"Check {_throughput_flags(flags)} and --gpus {flags.gpus}."


def _plausible(mfu_percent: float) -> bool:
    low, high = PLAUSIBLE_PERCENT
    return low <= mfu_percent <= high


def _throughput_flags(flags: _Flags) -> str:
    if flags.tokens_per_s is not None:
        return f"--tokens-per-s {wording.plain(flags.tokens_per_s)}"
    return f"--tokens-per-step {flags.tokens_per_step}"


def _show(answer: ComparedThroughput) -> None:
    from rich.console import Console

    from holdfast.cli.tables import figure, table

    console = Console(highlight=False, markup=False)
    for line in _verdict(answer):
        click.echo(click.wrap_text(line, width=console.width))
    both, recomputed = (
        (answer.full, answer.causal),
        f"HFU, recompute {wording.number(answer.throughput.recompute)}",
    )
    rows = (
        ("MFU", *(f"{counted.mfu_percent:.1f} %" for counted in both)),
        (recomputed, *(f"{counted.hfu_percent:.1f} %" for counted in both)),
        ("model TFLOP/s per GPU", *(f"{counted.model_tflops_per_gpu:.1f}" for counted in both)),
    )
    columns = ("", figure("full attention"), figure("causal attention"))
    console.print(table(*columns, rows=rows))
    model, peak_tflops = answer.throughput.model, answer.throughput.peak_flops_per_s / 1e12
    click.echo(f"\npeak   {wording.number(peak_tflops)} TFLOP/s per GPU, dense {answer.precision}")
    params, active = (wording.rough(some) for some in (model.params, model.active_params))
    click.echo(f"model  {params} parameters, {active} used per token")


def _verdict(answer: ComparedThroughput) -> list[str]:
    """The sentences above the table."""
    if answer.wrong:
        return [answer.wrong, ""]
    if answer.chip is None:
        return ["There is no reference without --chip.", ""]
    if answer.reference is None:
        return [f"There is no reference: {references.unpublished(answer.precision)}.", ""]
    unlike = [f"That row has {', '.join(answer.differences)}."] if answer.differences else []
    return [f"MFU {answer.sentence}.", _counting(answer.reference, answer.full.mfu_percent), *unlike, ""]


def _counting(row: references.MfuReference, full_percent: float) -> str:
    if row.compared_as == "full" and full_percent > flops.IMPOSSIBLE_PERCENT:
        return "Full attention counts work that no causal kernel does: on long sequences it may exceed 100 %."
    if row.attention == "unknown":
        return "Its source does not say how it counts attention; the run is counted with full attention."
    return f"Both are counted with {row.attention} attention."
