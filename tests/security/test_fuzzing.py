"""A campaign against every decoder and importer: no input may raise an undeclared error or take much memory.

`DECODERS` is the complete list of them; a test proves that no decoding module is missing. `make test` tries
each a little; `make soak` for ten minutes, in a process of its own with limited memory.
To try one by hand: `python tests/security/test_fuzzing.py record.journal 60`.
"""

import hashlib
import os
import pickle
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from holdfast.check import answering, fabric, figures
from holdfast.control import history as control_history
from holdfast.control import policy as control_policy
from holdfast.detect import xids
from holdfast.diagnose import lifecycle
from holdfast.drills.live import keeping
from holdfast.economics.finance import ownership
from holdfast.economics.pricing import prices
from holdfast.economics.sizing import size_file
from holdfast.record import events, journal, kernel
from holdfast.record.errors import HoldfastError
from holdfast.record.importers import Options, import_file
from holdfast.run import chaos, estate, image, stacks, state, watching, wire
from holdfast.schedulers import kubernetes as kubernetes_scheduler
from holdfast.schedulers import (
    kubernetes_api,
    kubernetes_objects,
    site,
    slurm_commands,
    slurm_documents,
    slurm_rest,
)
from holdfast.signals import flight_dumps, http_client, plain_pickle, stack_files, wandb_file
from holdfast.signals.collectors import kernel_log
from holdfast.signals.collectors import slurm as slurm_states
from holdfast.signals.step_files import StepFiles
from holdfast.stragglers import kineto, members, meta, trace
from holdfast.topology import document, file, hostlist
from holdfast.topology.discovery import kubernetes, slurm
from holdfast.train import (
    checkpoint,
    copying,
    importing,
    manifest,
    manifest_file,
    owning,
    snapshot_file,
    snapshot_restore,
)
from holdfast.train.chunks import Unsound, name_of
from holdfast.train.place import StorageTrouble
from holdfast.twin import presets

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SOURCE = ROOT / "src" / "holdfast"
SOAK_S = 600.0
FEW = 15
"""Examples of each decoder in `make test`."""
MANY = 500
"""Examples between two checks of the clock."""
MEMORY_BYTES_MAX = 1 << 30
"""Beyond the memory of the process once everything is imported."""
INPUT_BYTES_MAX = 1 << 16
SEED_BYTES_MAX = 4096

_decodes = re.compile(
    r"json\.decode\(|json\.Decoder\(|msgpack\.decode\(|msgpack\.Decoder\(|tomllib\.loads\(|yaml\.(?!safe_dump)"
    r"|json\.loads?\(|gzip\.|torch\.load\(|pickle\.loads?\(|read_csv|read_parquet|text_string_to_metric"
)
WANDB = (Path(__file__).parents[1] / "data" / "wandb" / "run-0yuxogsm.wandb").read_bytes()[:2_000]


class Decoder(NamedTuple):
    """read: takes any bytes. errors: everything that it may raise. seeds: valid inputs to begin with."""

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda content: read(content.decode("utf-8", "surrogateescape"))


def from_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """For a reader that takes a path."""

    def reading(content: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            return read(path)

    return reading


def imported(path: Path) -> int:
    with import_file(path, Options()) as reading:
        return sum(1 for _ in reading)


def steps_of(content: bytes) -> object:
    """Read as a run's log, and as files of TensorBoard and Weights & Biases."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("log", "events.out.tfevents.1", "run-1.wandb")]
        for path in paths:
            path.write_bytes(content)
        return [np.array(StepFiles(path).steps(), np.int64) for path in paths]


def survey_of_slurm(content: bytes) -> object:
    said = content.decode("utf-8", "replace")
    return slurm.survey(nodes=said, switches=said, jobs=content)


def kubernetes_nodes(content: bytes) -> object:
    page = http_client.decoded(content, kubernetes_objects.KubePage[kubernetes_objects.KubeNode])
    return [
        kubernetes_scheduler.viewed(node, gpus=node.gpus, jobs=(), booted_ns=0) for node in page.items or ()
    ]


def kubernetes_pods(content: bytes) -> object:
    page = http_client.decoded(content, kubernetes_objects.KubePage[kubernetes_objects.KubePod])
    return [pod.job for pod in page.items or ()]


def documents_of_slurm(content: bytes) -> object:
    told = slurm_documents.read_document(content, who="fuzz")
    found = slurm_documents.nodes_of(told, 8), slurm_documents.jobs_of(told)
    return found, slurm_documents.windows_of(told), told.complaint


SLURM_DOCUMENTS = (
    b'{"nodes": [{"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "x", "boot_time": 7}]}',
    b'{"nodes": [{"name": "n1", "state": ["IDLE"], "gres": "gpu:8", "boot_time": {"set": true, "number": 7}}]'
    b"}",
    b'{"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "n[1-2]", "name": "a"}], "errors": []}',
    b'{"reservations": [{"name": "a", "flags": "MAINT", "node_list": "n1", "start_time": 1, "end_time": 2}]}',
)
SLURM_API = (
    b'{"paths": {"/slurm/v0.0.38/nodes": {"get": {}}, "/slurm/v0.0.38/node/{node_name}": {"post": {}}}}'
)


def asked(content: bytes) -> None:
    """Read as a question to the fabric's answerer from a client that has proven the token, and hangs up."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(content[: 1 << 12])
        answering.FabricQuestions(fabric.BoundedSocket(ours, time.monotonic() + 10)).answer()


def acted(content: bytes) -> object:
    """Read as a decision in the record."""
    told = content.decode("utf-8", "replace")
    event = events.ControlActed(
        id="a", occurred_ns=1, action="drain-now", stage="decided", mode="act", decision=told
    )
    return control_history.ControlHistory([event]).out


def states_of_slurm(content: bytes) -> object:
    said = content.decode("utf-8", "replace")
    return (
        slurm_states.parse_nodes(said),
        slurm_states.parse_jobs(said),
        slurm_states.parse_reservations(said),
    )


def diagnosed(content: bytes) -> object:
    return lifecycle.restored(
        [
            events.IncidentDiagnosed(
                id="i",
                occurred_ns=1,
                subject="s",
                incident="r/s1",
                state="open",
                diagnosis=content.decode("utf-8", "surrogateescape"),
            )
        ]
    )


def sample(path: str) -> bytes:
    return (DATA / path).read_bytes()[:SEED_BYTES_MAX]


EVENT = events.encode(events.RunStarted(id="e1", occurred_ns=1, run="r", gpus=8))
FRAME = msgspec.msgpack.encode({"type": "AgentJoined", "node": "n", "slots": 8, "address": "a", "port": 1})
ESTATE = image.estate_bytes(estate.Estate(state.RunPolicy(run="r"), 1, "token"))
ENTRY = image.entry_bytes(estate.Told("a line", 1, "trouble"))
PROFILE = b'{"traceEvents":[{"name":"ProfilerStep#3","ph":"X","cat":"cpu_op","ts":1.0,"dur":2.5,"args":{}}]}'
CSV = b"step,optype,start_ts,duration\n1,forward-compute,0.0,1.0\n"
EVENTS = struct.pack("<QIBdBBI", 11, 0, 0x09, 1_772_442_000.5, 0x10, 7, 0)
PLAN = b"[[fault]]\nstep = 3\nmoment = 'reduce'\n"
TOPOLOGY = (SOURCE / "topology" / "example.yaml").read_bytes()[:SEED_BYTES_MAX]
KMSG = b"4,612,31981371,-;NVRM: Xid (PCI:0000:00:06): 43, pid=440, name=python3, channel 0x0000000a"
CALL = {
    "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    "process_group": ("0", "default_pg"),
    "pg_id": 0,
    "collective_seq_id": 2**40,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[8, 2]],
    "input_dtypes": ["Float"],
    "state": "started",
}
FLIGHT_DUMP = pickle.dumps(
    {
        "version": "2.10",
        "entries": [CALL, CALL],
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 4}},
    },
    2,
)
_LAID = manifest.lay_out({"small": torch.ones(2), "large": torch.ones(600), "step": 1})
_WHOLE = manifest_file.WrittenStretch(1, 0, bytes(32), ((0, 0),))
SHARE = manifest_file.ShareNote(
    1, manifest_file.ALL, manifest.layout_of(_LAID), (_WHOLE,), (("0123456789abcdef-000000.pack", 2400),)
)
SNAPSHOT_NOTE = msgspec.msgpack.encode(
    snapshot_file.SnapshotNote(
        (
            snapshot_file.KeptStretch(
                1, 0, 2400, snapshot_file.PAGE_BYTES, name_of(torch.ones(600).numpy().tobytes())
            ),
        ),
        _LAID.skeleton,
        _LAID.stored,
        (8, 2400),
        {0: torch.ones(2).numpy().tobytes()},
    )
)
CHECKPOINT = manifest_file.encoded(manifest.assembled(1, _LAID, [SHARE]))
HEADER_BYTES = 68
_TENSORS = b'{"__metadata__":{"b":"a"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
SAFETENSORS = struct.pack("<Q", len(_TENSORS)) + _TENSORS + bytes(8)


def with_hash(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """For a reader of manifests: the hash matches, whatever the contents."""

    def reading(content: bytes) -> object:
        payload = content[HEADER_BYTES:]
        hashed = hashlib.blake2b(payload, digest_size=32).digest()
        return from_file(read, "step-000000000001.checkpoint")(
            struct.pack(">16sIQQ32s", CHECKPOINT[:16], 2, 1, len(payload), hashed) + payload
        )

    return reading


KUBECONFIG = b"""\
current-context: here
clusters: [{name: c, cluster: {server: "https://k:6443", certificate-authority-data: YQ==}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: here, context: {cluster: c, user: u}}]
"""
KUBERNETES_NODES = (
    b'{"items":[{"metadata":{"name":"n1","creationTimestamp":"2026-11-17T12:00:00Z","labels":{"nvidia.com/gpu.count":"8"},'
    b'"annotations":{"holdfast.dev/cordon-by":"holdfast-control",'
    b'"holdfast.dev/cordon-reason":"holdfast: x (y)"},'
    b'"managedFields":[{"manager":"kubectl","fieldsV1":{"f:spec":{"f:unschedulable":{}}}}]},'
    b'"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}'
)
KUBERNETES_LEASE = (
    b'{"metadata":{"name":"c","resourceVersion":"7"},"spec":{"holderIdentity":"a_1","leaseDurationSeconds":120,'
    b'"acquireTime":"2026-01-01T00:00:00.000000Z","leaseTransitions":3}}'
)
KUBERNETES_PODS = (
    b'{"items":[{"metadata":{"name":"p","namespace":"a","ownerReferences":[{"kind":"Job","name":"j","controller":true}]},'
    b'"spec":{"nodeName":"n1","containers":[{"resources":{"limits":{"nvidia.com/gpu":"8"}}}]},"status":{"phase":"Running"}}]}'
)
STACK = b'Current thread 0x7f (most recent call first):\n  File "/a/train.py", line 8 in load\n'
NOTE = msgspec.json.encode(
    keeping.DrillNote(
        id="n",
        run="r",
        scenario="half-speed",
        target="n0.0",
        due_ns=1,
        put_back=(
            keeping.Continue(process=keeping.KnownProcess(pid=7, started=8)),
            keeping.Remove(path="/none"),
        ),
    )
)


def as_snapshot(content: bytes) -> object:
    """For the reader of snapshots: the hash matches, whatever the note contains."""
    descriptor = os.memfd_create("fuzzed")
    try:
        data_bytes = snapshot_file.PAGE_BYTES + 2432
        os.pwrite(descriptor, torch.ones(600).numpy().tobytes(), snapshot_file.PAGE_BYTES)
        os.pwrite(descriptor, content, data_bytes)
        os.ftruncate(descriptor, data_bytes + len(content))
        digest = hashlib.blake2b(content, digest_size=32).digest()
        header = snapshot_file.PartHeader(
            1, manifest_file.ALL, 0, 1, data_bytes, len(content), bytes(32), digest
        )
        file = snapshot_file.MemoryFile(descriptor)
        return snapshot_restore.restored(
            [(file, header)], torch.device("cpu"), snapshot_restore.RestoreTimes()
        )
    finally:
        os.close(descriptor)


DECODERS: dict[str, Decoder] = {
    "record.events": Decoder(events.decode, (events.MalformedEvent, RecursionError), (EVENT,)),
    "record.journal": Decoder(
        from_file(lambda path: list(journal.read(path)), "a-0.journal"), (), (journal.line_of(EVENT) * 3,)
    ),
    "drills.live.keeping": Decoder(from_file(keeping.read_note, "note.json"), (), (NOTE,)),
    "record.kernel": Decoder(text(lambda one: (kernel.parse_kmsg(one), kernel.parse_xid(one))), (), (KMSG,)),
    "record.importers": Decoder(
        from_file(imported, "log"),
        (HoldfastError,),
        (
            sample("google-70b-112-nodes-events.jsonl"),
            sample("infinitehbd-fault-trace.json"),
            sample("slurm/sacct.txt"),
            sample("steps.csv"),
            journal.line_of(EVENT),
            b'{"time": 1, "kind": "step.committed", "run": "r", "step": 3}\n',
            b'{"time": 1, "kind": "step.committed", "run": "r", "step": 3, "loss": NaN, "grad": -Infinity}\n',
        ),
    ),
    "signals.collectors.kernel_log": Decoder(
        kernel_log.parse_line,
        (),
        (KMSG, b'{"_TRANSPORT":"kernel","MESSAGE":"x"}', sample("kernel-logs/dmesg-xid-119.log")[:300]),
    ),
    "signals.collectors.slurm": Decoder(
        states_of_slurm, (HoldfastError,), (sample("topology/scontrol-show-node.txt"),)
    ),
    "topology.document": Decoder(text(document.read), (HoldfastError,), (TOPOLOGY, b"a: &a [1]\nb: *a\n")),
    "topology.file": Decoder(text(file.read), (HoldfastError,), (TOPOLOGY,)),
    "topology.hostlist": Decoder(text(hostlist.expand), (HoldfastError,), (b"n[00-15,20].[0-7],login1",)),
    "topology.discovery.slurm": Decoder(
        survey_of_slurm,
        (HoldfastError,),
        (sample("topology/squeue.json"), sample("topology/scontrol-show-topology.txt")),
    ),
    "topology.discovery.kubernetes": Decoder(
        kubernetes.survey, (HoldfastError,), (b'{"items":[{"metadata":{"name":"n1","labels":{"a":"b"}}}]}',)
    ),
    "detect.xids": Decoder(text(xids.parse_overrides), (HoldfastError,), (b"[xid.79]\naction = 'reboot'\n",)),
    "diagnose.lifecycle": Decoder(diagnosed, (), (b'{"name":"r/s1","cause":{}}',)),
    "stragglers.kineto": Decoder(from_file(kineto.read_profiles, "rank0.json"), (HoldfastError,), (PROFILE,)),
    "stragglers.members": Decoder(from_file(members.read_members, "m.csv"), (HoldfastError,), (CSV,)),
    "stragglers.trace": Decoder(from_file(trace.read_table, "t.csv"), (HoldfastError,), (CSV,)),
    "stragglers.meta": Decoder(
        from_file(meta.read_meta, "m.yaml"), (HoldfastError,), (sample("straggler/meta-AR.yaml"),)
    ),
    "economics.sizing.size_file": Decoder(
        text(size_file.read), (HoldfastError,), (b"[model]\nparameters = 7e9\n",)
    ),
    "economics.finance.ownership": Decoder(
        text(ownership.read), (HoldfastError,), (ownership.template().encode(),)
    ),
    "economics.pricing.prices": Decoder(text(prices.read), (HoldfastError,), (prices.template().encode(),)),
    "control.policy": Decoder(
        text(control_policy.read_policy), (HoldfastError,), (control_policy.example().encode(),)
    ),
    "control.history": Decoder(acted, (), (b'{"action":"drain-now","target":"n1","price":{}}',)),
    "schedulers.site": Decoder(
        lambda content: site.told(site.SiteAnswer(code=1, output=content)),
        (),
        (b'{"ok": false, "checks": [{"name": "gpu0.product", "value": 12, "ok": false}]}',),
    ),
    "schedulers.slurm_commands": Decoder(
        text(slurm_commands.parse_nodes), (), (sample("topology/scontrol-show-node.txt"),)
    ),
    "schedulers.slurm_documents": Decoder(documents_of_slurm, (HoldfastError,), SLURM_DOCUMENTS),
    "schedulers.slurm_rest": Decoder(slurm_rest.read_api, (HoldfastError,), (SLURM_API,)),
    "schedulers.kubernetes_api": Decoder(
        text(lambda config: kubernetes_api.read_kubeconfig(config, ROOT)), (HoldfastError,), (KUBECONFIG,)
    ),
    "schedulers.kubernetes": Decoder(kubernetes_nodes, (ValueError,), (KUBERNETES_NODES,)),
    "schedulers.kubernetes_lease": Decoder(
        lambda content: http_client.decoded(content, kubernetes_objects.KubeLease),
        (ValueError,),
        (KUBERNETES_LEASE,),
    ),
    "schedulers.kubernetes_objects": Decoder(kubernetes_pods, (ValueError,), (KUBERNETES_PODS,)),
    "run.wire": Decoder(wire.unframe, (wire.MalformedFrame,), (FRAME,)),
    "run.watching": Decoder(watching.status_of, (wire.MalformedFrame,), (b"\x80",)),
    "run.wire.unpack": Decoder(wire.unpack, (wire.MalformedFrame,), (wire.pack([("n0.0", "seat/0", b"v")]),)),
    "run.image": Decoder(image.estate_of, (wire.MalformedFrame,), (ESTATE,)),
    "run.image.entry_of": Decoder(image.entry_of, (wire.MalformedFrame,), (ENTRY,)),
    "run.stacks": Decoder(text(stacks.read_stacks), (), (STACK,)),
    "run.chaos": Decoder(from_file(chaos.read_plan, "plan.toml"), (HoldfastError,), (PLAN,)),
    "train.checkpoint": Decoder(
        from_file(checkpoint.read, "step-000000000001.checkpoint"), (Unsound, OSError), (CHECKPOINT,)
    ),
    "train.manifest": Decoder(with_hash(checkpoint.read), (Unsound, OSError), (CHECKPOINT,)),
    "train.manifest_file": Decoder(manifest_file.manifest_of, (Unsound,), (CHECKPOINT,)),
    "train.copying": Decoder(
        copying.noted_packs, (StorageTrouble,), (b'{"packs":["chunks/0123456789abcdef-000000.pack"]}',)
    ),
    "train.owning": Decoder(owning.owner_in, (StorageTrouble,), (b'{"run":"small"}',)),
    "train.importing": Decoder(importing.read_safetensors, (importing.MalformedTensors,), (SAFETENSORS,)),
    "train.snapshot_file": Decoder(as_snapshot, (Unsound, OSError), (SNAPSHOT_NOTE,)),
    "train.manifest.shares": Decoder(
        with_hash(manifest_file.read_share), (Unsound, OSError), (manifest_file.encoded(SHARE),)
    ),
    "twin.presets": Decoder(presets.hazards_from, (HoldfastError,), (b'{"preset":{}}',)),
    "signals.step_files": Decoder(
        steps_of,
        (),
        (EVENTS, b'{"step":1,"time":1772442000.5,"loss":NaN}\n', b"time,step\n1772442000,1\n1772442001,2\n"),
    ),
    "signals.plain_pickle": Decoder(
        plain_pickle.decode, (plain_pickle.NotPlain,), (FLIGHT_DUMP, pickle.dumps(os.getcwd, 2))
    ),
    "signals.flight_dumps": Decoder(
        lambda content: flight_dumps.parse_dump(0, content),
        (ValueError,),
        (FLIGHT_DUMP, b'{"version":"2.10","entries":[{"process_group":["0",""]}],"pg_config":{}}'),
    ),
    "check.answering": Decoder(
        asked,
        (wire.MalformedFrame, OSError),
        (fabric.REQUEST.pack(b"E", 2) + bytes(128), fabric.REQUEST.pack(b"S", 3) + b"abc"),
    ),
    "check.figures": Decoder(
        from_file(figures.read_reference, "good.toml"), (HoldfastError,), (b'"gpu0.product" = 731.25\n',)
    ),
    "signals.stack_files": Decoder(
        stack_files.parse_stack, (), (b'Thread 1 (idle): "MainThread"\n    load (loader.py:33)\n',)
    ),
    "signals.wandb_file": Decoder(lambda content: wandb_file.told(content, 0), (), (WANDB,)),
}

ELSEWHERE = {
    "check.gpus": "reads what the probe that it has started writes",
    "check.host": "reads what the program that it has started writes",
    "cli": "opens files by the readers above; of benchmarks, reads what it has written itself",
    "diagnose.mechanisms": "reads a file of the package",
    "drills.live.striking": "reads what the program that it has started writes",
    "drills.scenarios.playing": "reads a file of the package",
    "ledger.references": "reads a file of the package",
    "record.importers": "is fuzzed as a whole, by the way in",
    "record.spool": "believes only what this user, or the owner of the journal, has written",
    "record.untrusted": "has no format of its own",
    "run.agent": "reads what its parent writes",
    "run.hub": "reads what its parent writes",
    "run.launcher": "reads what the coordinator that it has started writes",
    "run.prover": "reads what the program that it has started writes",
    "run.replaying": "reads what the command that has started it writes",
    "run.standby": "reads what its parent writes",
    "run.distant": "reads what its parent writes; what its coordinator sends is above",
    "run.heirs": "writes what its child reads",
    "run.endpoint": "reads a file in this user's home",
    "run.started_with": "reads a file in this user's home, of any bytes (tests/run/test_started_with.py)",
    "signals.collectors.scrape": "a client of HTTP; tests/security has its attacks",
    "signals.http_client": "a client of HTTP; tests/security has its attacks",
    "signals.prometheus": "a client of HTTP; tests/security has its attacks",
    "signals.collectors.redfish_service": "a client of HTTP; tests/security has its attacks",
    "signals.store": "reads what it has written itself",
    "train": "takes from members that have proven themselves, and from its own files; checkpoints are above",
    "twin": "writes YAML; its presets are above",
}
"""What decodes something but is not in the list, by module or room, and why."""

hostile = st.sampled_from(
    [
        b"[" * 20_000,
        b'{"a":' * 10_000,
        b"\x91" * 20_000,
        b"9" * 5_000,
        b"1e999",
        b"-1",
        b"18446744073709551616",
        b"NaN",
        b"\xff\xfe",
        b"\x00",
        b"\xed\xa0\x80",
        b"\x1b[2J",
        b"\n",
        b'"',
        b"'",
        b"[0-1999999]",
        b"&a [*a]",
        b"null",
        b"{}",
        b"|",
    ]
)
pieces = st.one_of(st.binary(max_size=16), hostile, st.text(max_size=8).map(lambda one: one.encode()))


@st.composite
def inputs(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Noise, or something well-formed with pieces cut out, doubled and inserted."""
    content = draw(st.one_of(st.sampled_from(seeds), st.binary(max_size=64)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 64)))
        middle = draw(st.one_of(pieces, st.just(content[start:end] * 2)))
        content = content[:start] + middle + content[end:]
    return content[:INPUT_BYTES_MAX]


def attack(decoder: Decoder, examples: int, number: int) -> None:
    """Try this many inputs, chosen by a number; raises undeclared errors, with the input that caused them."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(inputs(decoder.seeds))
    def check(content: bytes) -> None:
        try:
            decoder.read(content)
        except decoder.errors:
            return

    check()


def campaign(name: str, seconds: float) -> None:
    """Attack until the time is over, in a process of its own with little memory."""
    used = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    limit = used + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    until_s, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < until_s:
        attack(DECODERS[name], MANY if seconds > 1 else FEW, number)
        number += 1
    print(f"{name}: {number} rounds of inputs, and nothing undeclared")


def test_every_module_that_decodes_is_in_the_list() -> None:
    found = {
        str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in SOURCE.rglob("*.py")
        if _decodes.search(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 30
    missing = {
        module
        for module in found - DECODERS.keys()
        if not any(module == known or module.startswith(f"{known}.") for known in ELSEWHERE)
    }
    assert not missing, f"add these to DECODERS, or to ELSEWHERE with the reason: {sorted(missing)}"


@pytest.mark.parametrize("name", DECODERS)
def test_no_input_raises_what_is_not_declared(name: str) -> None:
    attack(DECODERS[name], FEW, number=1)


@pytest.mark.soak
@pytest.mark.parametrize("name", DECODERS)
def test_ten_minutes_of_inputs_break_no_decoder(name: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__, name, str(SOAK_S)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
        timeout=SOAK_S * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    campaign(sys.argv[1], float(sys.argv[2]))
