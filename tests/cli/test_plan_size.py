"""`holdfast plan size`: the ranking, the check of one layout, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

LLAMA_16K = "--model llama3-405b --gpus 16384 --chip h100 --seq 8192 --global-batch 2048"


def test_the_ranking_names_the_best_first_and_what_was_assumed(holdfast: Any) -> None:
    done = holdfast("plan", "size", *f"{LLAMA_16K} --tokens 15.6t --limit 3".split())
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert (
        lines[0] == "llama3-405b on 16,384 H100: TP8 PP16 DP128 is the quickest of 18 layouts that may fit."
    )
    rows = [line for line in lines if line.startswith("TP")]
    assert [row.split()[:3] for row in rows[:1]] == [["TP8", "PP16", "DP128"]]
    assert len(rows) == 3
    assert "and 15 more; see --limit" in done.out
    assert "Table 4" in done.out.partition("Assumed")[2]
    assert "the median of 3 published near this size: 41.0 to 46.5 %" in " ".join(done.out.split())
    assert "Ranked by the time of a step" in done.out
    assert "*: may run out of memory" in done.out
    assert done.err == ""


def test_fp4_is_taken_to_be_as_quick_as_what_is_published_and_says_so(holdfast: Any) -> None:
    asked = ("plan", "size", "--model", "llama3-70b", "--gpus", "64", "--chip", "gb300", "--precision")
    fp8, fp4 = (holdfast(*asked, precision, "--json").json["sized"][0] for precision in ("fp8", "fp4"))
    assert fp4["usd"] == fp8["usd"]
    shown = " ".join(holdfast(*asked, "fp4").out.split())
    assert "no run in fp4 is published: its steps are taken to be as quick as in fp8" in shown


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(holdfast: Any, columns: int) -> None:
    done = holdfast("plan", "size", *f"{LLAMA_16K} --limit 3".split(), COLUMNS=str(columns))
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= columns
    assert "TP8 PP16 DP128" in done.out


def test_json_has_everything(holdfast: Any) -> None:
    found = holdfast("plan", "size", *f"{LLAMA_16K} --json --limit 1".split()).json
    assert len(found["sized"]) == 18
    best = found["sized"][0]
    assert best["layout"] | {"interleave": 8, "zero": 2, "recompute": "selective"} == best["layout"]
    assert best["memory_bytes"] == sum(best["memory"].values()) <= found["usable_bytes"]
    assert best["survival"]["dp"] == 127
    assert found["case"]["training"]["global_batch"] == 2048
    assert found["rate"]["reference"]["mfu_percent"] == 43
    assert found["rate"]["runs"] == 3
    assert found["ranked_by"].startswith("time of a step")
    low, high = best["memory_range"]["low_bytes"], best["memory_range"]["high_bytes"]
    assert low < best["memory_bytes"] < found["memory_bytes"] < high
    assert best["may_run_out"] is True
    assert any("GPU-hour" in one for one in found["assumed"])


def test_a_layout_is_checked_part_by_part(holdfast: Any) -> None:
    done = holdfast("plan", "size", *f"{LLAMA_16K} --tp 8 --pp 16".split())
    assert done.code == 0, done.err
    room = "TP8 PP16 DP128 may run out of memory, with 34.2 to 97.6 of 79.6 GiB a GPU."
    assert room in " ".join(done.out.split())
    assert "activations      63.5 GiB" in done.out
    assert "pipeline bubble" in done.out
    assert "127 of 128 replicas go on" in done.out


def test_members_that_hold_the_model_together(holdfast: Any) -> None:
    flags = "--model llama3-8b --gpus 64 --chip h100 --lanes 64 --tokens 1t --shard shard=4,tp=2"
    done = holdfast("plan", "size", *flags.split())
    assert done.code == 0, done.err
    assert "64 lanes are few for 8 replicas" in done.err
    shown = " ".join(done.out.split())
    assert "TP2 PP1 DP32 SHARD4 fits" in shown
    assert "; 8 replicas of 8 GPUs; ZeRO 3" in shown
    assert "rank lost refilled: a warm process takes its place" in shown
    assert "node lost shelved: 7 of 8 replicas go on, 3 s beyond a step; a step then takes 50.0 %" in shown
    (sized,) = holdfast("plan", "size", *flags.split(), "--json").json["sized"]
    assert [(one["lost"], one["outcome"]) for one in sized["losses"]] == [
        ("rank", "refilled"),
        ("node", "shelved"),
        ("rack", "shelved"),
    ]
    wrong = flags.replace("8b", "70b").replace("shard=4,tp=2", "shard=2")
    too_large = holdfast("plan", "size", *wrong.split())
    assert too_large.code == 2
    hints = re.findall(r"--shard ([a-z0-9=,]+[0-9])", too_large.err.partition("hint:")[2])
    assert len(hints) == 3
    for hint in hints:
        fits = holdfast("plan", "size", *wrong.replace("shard=2", hint).split())
        assert fits.code == 0, fits.err
    refused = holdfast("plan", "size", *flags.split(), "--tp", "2")
    assert (refused.code, "--tp cannot be given beside --shard." in refused.err) == (2, True)


def test_a_layout_that_works_but_not_well_is_warned_of(holdfast: Any) -> None:
    flags = "--model llama3-70b --gpus 64 --chip h100 --tp 8 --pp 8 --interleave 1 --global-batch 16"
    done = holdfast("plan", "size", *flags.split())
    assert done.code == 0
    assert "holdfast: The pipeline stands idle for 44 % of the time it computes" in done.err
    assert "holdfast: It does not survive the loss of a node" in done.err


@pytest.mark.parametrize(
    ("flags", "sentence", "hint"),
    [
        ("--model llama3-8b --gpus 19 --chip h100", "19 GPUs are not a whole", "that fit are 16 and 24."),
        ("--model llama3-405b --gpus 16 --chip h100", "needs 350.0 to 522.2 GiB a GPU", "that fits is 80."),
        ("--model llama3-8b --gpus 12.5 --chip h100", "'12.5' is not a whole number", "--help"),
        (
            "--model llama3-70b --gpus 64 --chip h100 --tp 16 --pp 1",
            "NVLink domain",
            "nearest that fit are TP8",
        ),
        ("--model llama3-70b --gpus 64 --chip h100 --tp 3", "TP 3", "TP4"),
        ("--model llama4 --gpus 64 --chip h100", "'llama4' is not known.", "llama3-8b"),
        ("--model llama3-8b --chip h100", "gpus missing.", "1024 GPUs"),
        ("--gpus 8 --chip h100", "The model is not fully described", "[model]"),
        ("--model llama3-8b --gpus 8 --chip a100 --precision fp8", "no fp8 arithmetic.", "bf16"),
        ("--model llama3-8b --gpus 8 --chip h100 --survive-node-loss", "no layout survives", "spare node"),
        (
            "--model llama3-8b --gpus 8 --chip b300 --lanes 6",
            "6 lanes are not a power of two",
            "Take 4 or 8.",
        ),
        ("nowhere.toml", "size file cannot be read from nowhere.toml", "docs/sizing.md"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence_with_a_hint(
    holdfast: Any, flags: str, sentence: str, hint: str
) -> None:
    done = holdfast("plan", "size", *flags.split())
    assert (done.code, done.out) == (2, "")
    told, hinted = done.err.splitlines()
    assert sentence in told
    assert told.endswith(".")
    assert hint in hinted


def test_a_file_with_a_model_of_ones_own_and_a_flag_over_it(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "size.toml").write_text(
        """
        [model]
        layers = 24
        hidden = 2048
        heads = 16
        ffn = 8192
        vocab = 50000
        [cluster]
        chip = "h100"
        gpus = 64
        [loader]
        workers = 16
        cpus_per_node = 64
        """,
        encoding="utf-8",
    )
    found = holdfast("plan", "size", "size.toml", "--gpus", "32", "--tp", "1", "--pp", "1", "--json")
    assert found.code == 0, found.err
    assert found.json["case"]["cluster"]["gpus"] == 32
    assert "136 processes for 64 CPUs" in found.err
    (tmp_path / "prices.toml").write_text("usd_per_gpu_hour = 1.0", encoding="utf-8")
    cheap = holdfast("plan", "size", "size.toml", "--prices", "prices.toml", "--json").json
    assert cheap["usd_per_gpu_hour"] == 1.0
    assert not any("GPU-hour" in one for one in cheap["assumed"])


def test_deepseek_is_told_its_precision_its_ties_and_what_is_hidden(holdfast: Any) -> None:
    words = ["plan", "size", "--model", "deepseek-v3", "--gpus", "2048", "--chip", "h800", "--limit", "2"]
    done = holdfast(*words, COLUMNS="200")
    assert "bf16 arithmetic; it was trained with fp8: say --precision fp8" in done.out
    assert "layouts are equally quick: none is credited with more than the published MFU." in done.out
    assert "of expert parallel exchange and" in done.out
    found = holdfast(*words, "--json").json
    quickest = [one for one in found["sized"] if one["pace"]["step_s"] == found["sized"][0]["pace"]["step_s"]]
    assert f"{len(quickest)} layouts are equally quick" in done.out
    assert found["ranked_by"].endswith("then by the overhead of the layout, then by memory")
    own = holdfast(*words, "--precision", "fp8", COLUMNS="200").out
    assert "it was trained with" not in own.replace("as it was trained with", "")
    assert "the rate of DeepSeek-V3 on 2,048 H800: 19.5 % MFU" in own
