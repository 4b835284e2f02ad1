"""Slurm, from what its commands printed on a real cluster (tests/data/ORIGINS.md)."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.errors import InputError
from holdfast.topology.assemble import assemble
from holdfast.topology.discovery import slurm
from holdfast.topology.survey import Survey

DATA = Path(__file__).parents[2] / "data" / "topology"
NO_JOBS = b'{"jobs": []}'


def captured() -> Survey:
    return slurm.survey(
        nodes=(DATA / "scontrol-show-node.txt").read_text("utf-8"),
        switches=(DATA / "scontrol-show-topology.txt").read_text("utf-8"),
        jobs=(DATA / "squeue.json").read_bytes(),
    )


def test_nodes_switches_and_jobs_are_found() -> None:
    survey = captured()
    topology = assemble(survey)
    assert topology.names("node") == ("login1", "n00", "n01", "n02", "n03")
    assert len(topology.names("gpu")) == 32
    assert "login1" not in survey.gpus
    assert topology.dependencies("n01") == ("leaf-0",)
    assert topology.dependencies("leaf-1") == ("spine-0",)
    assert topology.names("run") == ("pretrain",)
    assert topology.names("member") == ("pretrain/n00", "pretrain/n01")
    assert survey.aliases == {"1": "pretrain"}


def test_a_topology_conf_is_read_as_well() -> None:
    text = "# the fabric\nswitchname=s0 Nodes=dev[0-1] LinkSpeed=100 # near\nSwitchName=s3 Switches=s[0-2]\n"
    survey = slurm.survey(nodes="", switches=text, jobs=NO_JOBS)
    assert survey.on["dev1"] == {"leaf": ["s0"]}
    assert survey.on["s2"] == {"spine": ["s3"]}
    assert (survey.kinds["s0"], survey.kinds["s3"]) == ("leaf", "spine")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:8", 8),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:2,gpu:h100:6(S:0)", 8),
        ("shard:80,gpu:4,tmpfs:1", 4),
        ("(null)", 0),
        ("gpu:h100:8(IDX:0-7)", 8),
    ],
)
def test_gpus_are_counted(gres: str, gpus: int) -> None:
    text = f"NodeName=n1 Arch=x86_64 Gres={gres} State=IDLE\nNodeName=n2 Gres=(null)\n"
    survey = slurm.survey(nodes=text, switches="", jobs=NO_JOBS)
    assert len(survey.gpus.get("n1", ())) == gpus
    assert survey.kinds == {"n1": "node", "n2": "node"}


def test_jobs_of_the_same_name_are_told_apart_and_only_running_ones_count() -> None:
    jobs = [
        {"job_id": 1, "name": "train", "nodes": "n1", "job_state": "RUNNING"},
        {"job_id": 2, "name": "train", "nodes": "n2", "job_state": ["RUNNING"]},
        {"job_id": 3, "name": "eval", "nodes": "n3", "job_state": "PENDING"},
        {"job_id": 4, "name": "", "nodes": "n4", "job_state": "RUNNING"},
        {"job_id": 5, "name": "n1", "nodes": "n1", "job_state": "RUNNING"},
    ]
    encoded = msgspec.json.encode({"jobs": jobs})
    survey = slurm.survey(nodes="NodeName=n1\n", switches="", jobs=encoded)
    assert {run: sorted(members) for run, members in survey.members.items()} == {
        "train-1": ["n1"],
        "train-2": ["n2"],
        "job-4": ["n4"],
        "n1-5": ["n1"],
    }


def test_what_is_no_queue_is_refused() -> None:
    with pytest.raises(InputError, match="What squeue printed is not understood") as told:
        slurm.survey(nodes="", switches="", jobs=b"slurm_load_jobs error")
    assert "21.08" in told.value.hint


@given(st.text(max_size=80), st.text(max_size=80), st.binary(max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_survived(nodes: str, switches: str, jobs: bytes) -> None:
    slurm.survey(nodes=f"NodeName={nodes}", switches=f"SwitchName={switches}", jobs=NO_JOBS)
    with suppress(InputError):
        slurm.survey(nodes="", switches="", jobs=jobs)
