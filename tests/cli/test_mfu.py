"""`holdfast mfu` as its user meets it."""

import json
import shlex
from typing import Any

import pytest

from holdfast.cli import main

Captured = pytest.CaptureFixture[str]

MPT_70B = "--params 64862437376 --layers 80 --hidden 8192 --seq 2048 --gpus 512 --chip h100_80gb"
LLAMA = "--model llama3-70b --seq 8192 --gpus 64 --chip h100"


def mfu(capsys: Captured, arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["mfu", *shlex.split(arguments)])
    printed = capsys.readouterr()
    return int(str(ended.value.code)), printed.out, printed.err


def as_json(capsys: Captured, arguments: str) -> dict[str, Any]:
    code, out, err = mfu(capsys, f"{arguments} --json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_the_run_stands_beside_the_reference(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = mfu(capsys, f"{MPT_70B} --tokens-per-s 515636 --recompute 1")
    assert (code, err) == (0, "")
    assert out == (
        "MFU 41.3 % where 41.2 % is the reference (MPT-70B, 512 H100; MosaicML LLM\n"
        "Foundry, MPT training benchmarks).\n"
        "Both are counted with full attention.\n"
        "\n"
        "                       full attention  causal attention\n"
        "MFU                            41.3 %            40.4 %\n"
        "HFU, recompute 1               55.0 %            53.9 %\n"
        "model TFLOP/s per GPU           408.2             400.0\n"
        "\n"
        "peak   989 TFLOP/s per GPU, dense bf16\n"
        "model  64.9 billion parameters, 64.9 billion used per token\n"
    )


def test_an_unlike_reference_is_called_so(capsys: Captured) -> None:
    _, out, _ = mfu(capsys, "--model llama3-8b --seq 8192 --gpus 64 --chip b200 --tokens-per-s 1e6")
    assert "That row has the GB200 in place of the B200" in out


def test_a_source_that_does_not_say_how_it_counts_is_called_so(capsys: Captured) -> None:
    step = "--model llama3-405b --seq 8192 --step-s 6.6 --tokens-per-step 16777216"
    _, out, _ = mfu(capsys, f"{step} --gpus 16,384 --chip 'NVIDIA H100 80GB HBM3'")
    assert out.startswith("MFU 41.2 % where 41.0 % is the reference (Llama 3 405B, 16,384 H100;")
    assert "does not say how it counts attention" in out


def test_json_has_the_figures_and_the_row(capsys: Captured) -> None:
    run = "--model qwen3-235b-a22b --seq 4096 --gpus 256 --chip gb300 --precision fp8"
    answer = as_json(capsys, f"{run} --tokens-per-s {9015 * 256}")
    assert answer["causal"]["model_tflops_per_gpu"] == pytest.approx(1335, abs=1)
    assert answer["reference"]["model"] == "Qwen3 235B-A22B"
    assert answer["differences"] == []
    assert answer["sentence"].startswith("27.2 % where 27.2 % is the reference")


def test_steps_and_seconds_are_as_good_as_a_rate(capsys: Captured) -> None:
    rate = as_json(capsys, f"{LLAMA} --tokens-per-s 65536")
    assert rate == as_json(capsys, f"{LLAMA} --step-s 2 --tokens-per-step 131072")


def test_a_model_by_its_dimensions_is_the_model_by_name(capsys: Captured) -> None:
    rest = "--seq 4096 --tokens-per-s 600000 --gpus 64 --chip h100"
    named = as_json(capsys, f"--model Mixtral-8x7B {rest}")
    dimensions = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 32000"
    assert named == as_json(capsys, f"{dimensions} --experts 8 --active-experts 2 {rest}")


def test_active_parameters_make_a_mixture_of_experts(capsys: Captured) -> None:
    model = "--params 671b --active-params 37b --layers 61 --hidden 7168 --heads 128 --head-dim 128"
    answer = as_json(capsys, f"{model} --seq 4096 --gpus 256 --chip gb200 --tokens-per-s 1e6")
    assert answer["throughput"]["model"] == {
        "params": 671_000_000_000,
        "active_params": 37_000_000_000,
        "layers": 61,
        "attention_width": 16384,
        "moe": True,
    }
    assert answer["reference"]["active_params"] == 22_000_000_000


def test_packed_documents_cost_less_attention_than_one(capsys: Captured) -> None:
    rest = "--model llama3-70b --gpus 64 --chip h100 --tokens-per-s 65536"
    packed = as_json(capsys, f"{rest} --packed 4096,2048,2048")
    assert packed["throughput"]["sequence_tokens"] == 3072
    assert packed == as_json(capsys, f"{rest} --seq 3072")


def test_a_peak_stands_in_for_a_chip(capsys: Captured) -> None:
    rest = "--model llama3-70b --seq 8192 --gpus 64 --tokens-per-s 65536"
    code, out, err = mfu(capsys, f"{rest} --peak-tflops 989")
    assert (code, err) == (0, "")
    assert out.startswith("There is no reference without --chip.\n")
    with_chip = as_json(capsys, f"{rest} --chip h100")
    assert as_json(capsys, f"{rest} --peak-tflops 989")["full"] == with_chip["full"]


@pytest.mark.parametrize(("tokens_per_s", "is_above"), [(84_000, False), (101_000, True)])
def test_an_mfu_above_every_published_one_says_so(
    capsys: Captured, tokens_per_s: int, is_above: bool
) -> None:
    rest = f"--model llama3-70b --seq 8192 --gpus 64 --tokens-per-s {tokens_per_s} --chip h100"
    code, out, err = mfu(capsys, rest)
    assert (code, err) == (0, "")
    assert ("above every published one in bf16 (64.2 %)" in " ".join(out.split())) == is_above


def test_a_precision_of_which_no_run_is_published_has_no_reference(capsys: Captured) -> None:
    rest = "--model llama3-70b --seq 8192 --gpus 64 --tokens-per-s 300000 --chip gb300 --precision fp4"
    code, out, err = mfu(capsys, rest)
    assert (code, err) == (0, "")
    assert out.startswith("There is no reference: no run in fp4 is published to compare it with.\n")


@pytest.mark.parametrize(
    ("arguments", "doubt"),
    [
        ("--tokens-per-s 515636", "An MFU of 366 % is impossible. Does --gpus 64 count nodes?"),
        ("--tokens-per-s 180000", "An MFU of 128 % is impossible. Is --precision bf16 right?"),
        ("--tokens-per-s 1e9", "Check --tokens-per-s 1000000000 and the size of the model."),
        ("--tokens-per-s 100000 --recompute 1", ""),
        ("--tokens-per-s 120000 --recompute 1", "An HFU of 114 % is impossible. Is --recompute 1 right?"),
        (
            "--tokens-per-s 1000",
            "is hardly training. Is --tokens-per-s 1000 per GPU? For all 64 it would be 45 %",
        ),
        ("--step-s 8000 --tokens-per-step 524288", "Is --step-s 8000 in milliseconds?"),
        ("--tokens-per-s 0.1", "Check --tokens-per-s 0.1 and --gpus 64."),
    ],
)
def test_an_absurd_result_names_the_input_likely_wrong(capsys: Captured, arguments: str, doubt: str) -> None:
    code, out, err = mfu(capsys, f"{LLAMA} {arguments}")
    assert code == 0
    assert "causal attention" in out
    assert doubt in err
    assert len(err.splitlines()) == bool(doubt)


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (
            "--seq 8 --gpus 8 --chip h100",
            "--layers, --hidden, --heads, --ffn, --vocab missing",
            "--model NAME",
        ),
        ("--params 7b --seq 8 --gpus 8 --chip h100", "--layers, --hidden missing", "--params, --layers"),
        ("--model llama3-8b --gpus 8 --chip h100", "The sequence length is needed once", "--seq"),
        ("--model llama3-8b --seq 8 --packed 8 --gpus 8 --chip h100", "needed once", "--packed"),
        ("--model llama3-8b --packed 8,x --gpus 8 --chip h100", "'8,x' is not a list of lengths", "812,1201"),
        ("--model llama3-8b --seq 8 --gpus 8 --chip h100", "The throughput is missing", "--step-s"),
        (
            "--model llama3-8b --seq 8 --gpus 8 --chip h100 --step-s 1",
            "throughput is missing",
            "--tokens-per-s",
        ),
        ("--model llama3-8b --seq 8 --gpus 8 --tokens-per-s 9", "The chip is missing", "--peak-tflops"),
        ("--model llama9 --seq 8 --gpus 8 --chip h100", "'llama9' is not known", "llama3-8b"),
        ("--model llama3-8b --layers 3 --seq 8 --gpus 8 --chip h100", "--layers has no effect", "Leave"),
        ("--params 7b --ffn 3 --seq 8 --gpus 8 --chip h100", "--ffn has no effect", "Leave"),
        ("--model llama3-8b --seq 8 --gpus 8 --chip v100", "The chip 'v100' is not known", "h100"),
        ("--model llama3-8b --seq 8 --tokens-per-s 9 --chip h100", "Missing option '--gpus'", "--help"),
        ("--active-params 7b --gpus 8 --chip h100", "With the dimensions, --active-params has", "Leave"),
        (
            "--params 7b --active-params 8b --layers 2 --hidden 8 --gpus 8",
            "--active-params is larger than --params",
            "--active",
        ),
        (
            "--gpus 8 --tokens-per-s nan",
            "--tokens-per-s nan is not a finite number from 0.000000001 to 1,000,000,000,000,000,000.",
            "--help",
        ),
        ("--gpus 8 --tokens-per-s inf", "--tokens-per-s inf is not a number from", "--help"),
        ("--gpus 8 --tokens-per-s fast", "--tokens-per-s fast is not a number from", "--help"),
        ("--gpus 8 --step-s 0", "--step-s 0 is not a number from", "--help"),
        ("--gpus 8 --recompute 1.5", "--recompute 1.5 is not a number from 0 to 1.", "--help"),
        ("--params seven --seq 8 --gpus 8 --chip h100", "'seven' is not a count", "--help"),
        ("--params 0 --seq 8 --gpus 8 --chip h100", "'0' is not a count", "--help"),
        ("--params nan --seq 8 --gpus 8 --chip h100", "'nan' is not a count", "--help"),
        ("--model llama3-8b --seq 8k --gpus 8 --chip h100", "'8k' is not a count", "--help"),
        ("--model llama3-8b --seq 8 --gpus 8 --chip a100 --precision fp8 --tokens-per-s 9", "no fp8", "bf16"),
        (
            "--layers 2 --hidden 9 --heads 2 --ffn 9 --vocab 9 --seq 8 --gpus 8 --chip h100",
            "divide",
            "--head-dim",
        ),
        (
            "--layers 2 --hidden 8 --heads 2 --ffn 9 --vocab 9 --experts 8 --seq 8 --gpus 8 --chip h100",
            "belong together",
            "both",
        ),
        (
            "--layers 2 --hidden 8 --heads 2 --ffn 9 --vocab 9 --experts 2 --active-experts 4 --gpus 8",
            "--active-experts is larger than --experts",
            "--experts",
        ),
    ],
)
def test_a_mistake_is_a_sentence_and_a_hint(
    capsys: Captured, arguments: str, sentence: str, hint: str
) -> None:
    code, out, err = mfu(capsys, arguments)
    assert (code, out) == (2, "")
    said, hinted = err.splitlines()
    assert sentence in said
    assert hint in hinted
