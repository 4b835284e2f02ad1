"""A throughput as a share of the chips' peak, beside the nearest published figure."""

import msgspec

from holdfast.ledger import flops, references


class ComparedThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the peak, by both conventions. Reference and sentence are missing if the chip is unknown, or
    no run of this precision is published.

    wrong: why the share cannot be; empty if it can. Judged with causal attention: on long sequences the full
    convention counts work that is not done.
    """

    throughput: flops.Throughput
    chip: flops.Chip | None
    precision: flops.Precision
    full: flops.Utilisation
    causal: flops.Utilisation
    reference: references.MfuReference | None = None
    differences: tuple[str, ...] = ()
    sentence: str | None = None
    wrong: str = ""


def compared_throughput(
    throughput: flops.Throughput, chip: flops.Chip | None, precision: flops.Precision
) -> ComparedThroughput:
    causal, assumed = flops.utilisation(throughput, "causal"), (chip, precision, throughput.peak_flops_per_s)
    answer = ComparedThroughput(
        throughput=throughput,
        chip=chip,
        precision=precision,
        full=flops.utilisation(throughput, "full"),
        causal=causal,
        wrong=flops.impossible("MFU", causal.mfu_percent, *assumed)
        or flops.impossible("HFU", causal.hfu_percent, *assumed),
    )
    return _held_against_reference(answer, chip) if chip else answer


def _held_against_reference(answer: ComparedThroughput, chip: flops.Chip) -> ComparedThroughput:
    setup = references.ReferenceSetup(
        params=answer.throughput.model.params,
        gpus=answer.throughput.gpus,
        chip=chip,
        precision=answer.precision,
        moe=answer.throughput.model.moe,
        sequence_tokens=answer.throughput.sequence_tokens,
    )
    row = references.reference_mfu(setup)
    if row is None:
        return answer
    counted = answer.full if row.compared_as == "full" else answer.causal
    return msgspec.structs.replace(
        answer,
        reference=row,
        differences=references.differences(setup, row),
        sentence=None
        if answer.wrong
        else references.mfu_sentence(counted.mfu_percent, row)
        + references.above_published(answer.causal.mfu_percent, answer.precision),
    )
