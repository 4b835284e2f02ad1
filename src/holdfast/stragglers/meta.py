"""What a trace does not say about its job: its name, and the sizes of its groups."""

from pathlib import Path

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.files import parsed
from holdfast.stragglers.trace import Trace


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """A job's name, and the sizes of its data-parallel and pipeline groups; other keys are ignored."""

    trial_name: str = ""
    dp_size: int | None = None
    pp_size: int | None = None


def read_meta(path: Path) -> Meta:
    return parsed(path, _meta, what="job's meta file", hint=_HINT)


def _meta(text: str) -> Meta:
    from holdfast.topology import document

    try:
        if said := document.read(text).data:
            return msgspec.convert(said, Meta)
        raise InputError("It is empty.")
    except (InputError, msgspec.ValidationError) as error:
        raise InputError(f"It does not describe a job: {str(error).rstrip('.')}.", hint=_HINT) from None


def gaps(meta: Meta, trace: Trace) -> list[str]:
    """Sentences on what the trace lacks of the job, so that a part is not taken for the whole."""
    found = []
    for there, wanted, noun in (
        (len(trace.dp_ranks), meta.dp_size, "data-parallel ranks"),
        (len(trace.stages), meta.pp_size, "stages"),
    ):
        if wanted is not None and wanted != there:
            found.append(f"The job has {wanted} {noun} and the trace {there}.")
    return found


_HINT = "It is YAML, as `dp_size: 4` and `pp_size: 4`; the analysis works without it."
