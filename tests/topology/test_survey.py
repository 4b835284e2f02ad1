"""Several sources about one cluster: the first wins, the others add, and contradictions are told."""

from holdfast.topology.assemble import assemble
from holdfast.topology.file import read
from holdfast.topology.survey import Survey, merged

FILE = """
nodes:
  n[1-2]: {gpus: 2, ports: 'mlx5_[0-1]'}
racks:
  r1: all
leaves:
  l1: n[1-2]
runs:
  job: {nodes: 'n[1-2]'}
"""


def file_survey() -> Survey:
    return read(FILE, source="topology.yaml").survey


def told(other: Survey) -> list[str]:
    return [doubt.text for doubt in merged([file_survey(), other])[1]]


def test_what_the_file_does_not_say_is_added() -> None:
    other = Survey("Prometheus")
    other.kinds |= {"n1": "node", "n2": "node"}
    other.place("r1", "loop", "cdu-1")
    other.place("n1", "mount", "fs-1")
    survey, doubts = merged([file_survey(), other])
    assert doubts == ()
    topology = assemble(survey)
    assert topology.path("cdu-1", "job") == ("cdu-1", "r1", "n1", "n1.0", "job/n1", "job")
    assert "job/n1" in topology.dependents("fs-1")


def test_saying_the_same_is_no_contradiction() -> None:
    other = Survey("Prometheus")
    other.add_gpus("n1", ["0", "1"])
    other.add_gpus("n2", ["1", "0"])
    other.add_ports("n1", ["mlx5_0", "mlx5_1", "mlx5_bond_0"])
    other.place("n1", "rack", "r1")
    other.place("n1/mlx5_0", "leaf", "l1")
    for node in ("n1", "n2"):
        other.add_member("job", node)
    assert told(other) == []


def test_contradictions_are_told_and_the_file_wins() -> None:
    other = Survey("Slurm")
    other.add_gpus("n1", ["0"])
    other.add_ports("n2", ["mlx5_0"])
    other.place("n1", "rack", "r2")
    other.place("n2", "rack", "r2")
    other.place("n1/mlx5_1", "leaf", "l2")
    other.add_member("job", "n2")
    survey, doubts = merged([file_survey(), other])
    assert [doubt.text for doubt in doubts] == [
        "n[1-2] is on rack r1 (topology.yaml), and on r2 (Slurm).",
        "n1/mlx5_1 is on leaf l1 (topology.yaml), and on l2 (Slurm).",
        "n1 has 2 GPUs (topology.yaml), and 1 GPU (Slurm).",
        "n2 has the ports mlx5_1 (topology.yaml), and has not (Slurm).",
        "run job is on n[1-2] (topology.yaml), and on n2 (Slurm).",
    ]
    assert {doubt.kind for doubt in doubts} == {"contradiction"}
    topology = assemble(survey)
    assert topology.dependencies("n1") == ("r1",)
    assert len(topology.names("gpu")) == 4
    assert {"job/n1", "job/n2"} == {*topology.names("member")}


def test_a_name_of_another_kind_is_told_and_left_alone() -> None:
    other = Survey("Kubernetes")
    other.kinds |= {"r1": "node", "n1": "node", "n2": "node"}
    other.place("r1", "leaf", "l1")
    other.add_gpus("r1", ["0"])
    other.add_ports("r1", ["mlx5_0"])
    other.add_member("n1", "n2")
    texts = told(other)
    assert "r1 is a rack (topology.yaml), and a node (Kubernetes)." in texts
    assert "n1 is a node (topology.yaml), and a run (Kubernetes)." in texts
    assert assemble(merged([file_survey(), other])[0]).dependents("r1") == ("n1", "n2")


def test_nodes_that_only_one_source_knows_are_told_once() -> None:
    other = Survey("Slurm")
    other.kinds |= {f"n{number}": "node" for number in range(2, 12)}
    assert told(other) == [
        "Slurm has the nodes n[3-11], of which topology.yaml knows nothing.",
        "topology.yaml has the node n1, of which Slurm knows nothing.",
    ]


def test_a_jobs_number_is_another_name_of_its_run() -> None:
    slurm, prometheus = Survey("Slurm"), Survey("Prometheus")
    slurm.aliases["4711"] = "pretrain"
    slurm.add_member("pretrain", "n1")
    prometheus.add_member("4711", "n1")
    survey, doubts = merged([slurm, prometheus])
    assert doubts == ()
    assert assemble(survey).names("run") == ("pretrain",)


def test_a_node_is_one_by_its_short_name_and_a_run_names_its_members() -> None:
    other = Survey("Prometheus")
    other.add_gpus("n1.east.example", ["0", "1"])
    other.add_gpus("10.0.0.2", ["0", "1"])
    other.spellings.add(("N2", "10.0.0.2"))
    other.kinds["job"] = "run"
    other.members["job"] = {"n1.0": "n1.east.example", "n1.1+2": "n1.east.example", "rank-2": "10.0.0.2"}
    survey, doubts = merged([file_survey(), other])
    assert doubts == ()
    topology = assemble(survey)
    assert topology.causes("job/n1.0", "gpu") == ("n1.0",)
    assert topology.causes("job/n1.1+2", "gpu") == ("n1.1",)
    assert topology.causes("job/rank-2", "gpu") == ("n2.0", "n2.1")
