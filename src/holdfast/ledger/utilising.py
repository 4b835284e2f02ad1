"""A throughput as a share of the chips' peak, beside the nearest published figure."""

import msgspec

from holdfast.ledger import flops, references


class ComparedThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the peak, by both conventions. Reference and sentence are missing if the chip is unknown."""

    throughput: flops.Throughput
    chip: flops.Chip | None
    precision: flops.Precision
    full: flops.Utilisation
    causal: flops.Utilisation
    reference: references.MfuReference | None = None
    differences: tuple[str, ...] = ()
    sentence: str | None = None


def compared_throughput(
    throughput: flops.Throughput, chip: flops.Chip | None, precision: flops.Precision
) -> ComparedThroughput:
    answer = ComparedThroughput(
        throughput=throughput,
        chip=chip,
        precision=precision,
        full=flops.utilisation(throughput, "full"),
        causal=flops.utilisation(throughput, "causal"),
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
    counted = answer.full if row.compared_as == "full" else answer.causal
    return msgspec.structs.replace(
        answer,
        reference=row,
        differences=references.differences(setup, row),
        sentence=references.mfu_sentence(counted.mfu_percent, row),
    )
