"""Benchmarks of the product, which are not part of it: those of `holdfast bench`, and the exam of diagnose.

Every speed claim is a ratio against a peer or a physical limit, for anyone to run.
"""

from holdfast.cli.lazy import LazyGroup

command = LazyGroup(
    "bench",
    {
        "Commands": {
            "audits": "Flip bits in live runs: what audits find, how often, false alarms, cost.",
            "checkpoint": "Write and read checkpoints: against a plain file, torch.save and DCP.",
            "control": "Simulate gray failures under no action, fixed rules, shadow and control.",
            "coordinator": "Hold thousands of members in one coordinator: commits, regroups, memory.",
            "diagnose": "Diagnose hundreds of simulated incidents: precision, recall, time, alarms, cost.",
            "faultkit": "Sit a rival's exam: faults of lm-resiliency's kit, on it and on Holdfast.",
            "faults": "Strike live runs with every fault: who is found, how soon they go on, false alarms.",
            "gpu": "Train a GPT on a GPU: NCCL through 50 kills, recoveries, a step against a plain loop.",
            "ledger": "Fold a million events: events a second, memory, the cost of one more.",
            "overhead": "Train without faults: a step against plain DDP, the reduction against all_reduce.",
            "policies": "Simulate every way to go on after a failure, by cluster size and spares.",
            "rebalance": "Train with one slow member: steps with lanes dealt evenly, by pace, at best.",
            "record": "Record events: the cost of one against a plain write, and what a SIGKILL loses.",
            "recovery": "Kill a worker: seconds until all members commit again, beside three peers.",
            "sharded": "Kill ranks of an FSDP2 model: the same bits, recoveries, a step against HSDP.",
            "snapshot": "Copy a model's state beside its steps: stall, bandwidth, restore, DCP beside it.",
            "twin": "Simulate 54 days of 16,384 GPUs: seconds, growth with failures, seeds, memory.",
            "watch": "Look at a cluster in a real server: the first look of a watch against each later one.",
        }
    },
    name="bench",
    help="Measure Holdfast against a peer or a physical limit.",
)
