"""The types of operations that a trace may have, and what each waits for.

A type that is not named here is a computation that runs in order with the others of its worker, so a trace
may have parts of its own. A name may continue after a slash, as in `backward/3`: each such part has its own
ideal, because it is different work, but reports show all parts as one operation.
"""

FORWARD = "forward-compute"
BACKWARD = "backward-compute"
GATHER_PARAMS = "params-all-gather"
SCATTER_GRADS = "grads-reduce-scatter"
SEPARATE_GRADS = "separate-grads-all-reduce"
"""A worker with these scatters its gradients while the backward pass still runs."""
LAYERNORM = "layernorm-grads-all-reduce"
EMBEDDING = "embedding-grads-all-reduce"
COLLECTOR = "gc"
CLIP = "optimizer-clip-main-grad"
OPTIMIZER = "optimizer"

DIRECTIONS = ("forward", "backward")
TRANSFERS = {
    f"{direction}-{end}": f"{direction}-pp-comm" for direction in DIRECTIONS for end in ("send", "recv")
}
"""Between stages: each end of a transfer to the name under which both are one operation."""

TAIL = (COLLECTOR, LAYERNORM, EMBEDDING, SCATTER_GRADS, SEPARATE_GRADS, CLIP, OPTIMIZER)
"""What follows the last backward pass of a worker, in this order."""

AMONG_REPLICAS = frozenset({GATHER_PARAMS, SCATTER_GRADS, SEPARATE_GRADS})
"""Collectives of the workers that hold the same part of the model."""
AMONG_STAGES = frozenset({EMBEDDING})
"""Collectives of the first and the last stage of one replica."""
AMONG_ALL = frozenset({CLIP})

IN_PROGRAM_ORDER = frozenset(
    {
        *("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce", "barrier"),
        *("gather", "scatter", "exchange", "send-recv"),
    }
)
"""Communication in profilers' traces: its dependencies are derived from the times."""
UNPAIRED = frozenset({"send-recv"})
"""Those of them that do not name their peer: they wait for no other worker."""

COMMUNICATION = frozenset(
    {*TRANSFERS, *AMONG_REPLICAS, *AMONG_STAGES, *AMONG_ALL, LAYERNORM, *IN_PROGRAM_ORDER}
)


def type_of(kind: str) -> str:
    """The type, without the part."""
    return kind.partition("/")[0]


def group_of(kind: str) -> str:
    """The operation that a type belongs to: both ends of a transfer are one."""
    return TRANSFERS.get(type_of(kind), type_of(kind))


def is_communication(kind: str) -> bool:
    return type_of(kind) in COMMUNICATION or kind in TRANSFERS.values()
