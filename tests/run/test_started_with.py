"""What a run was started with: what a later start says has changed, and what is never kept."""

import os
import random
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.run.started_with import (
    ARGUMENTS_MAX,
    HIDDEN,
    changes,
    forget,
    in_words,
    keep,
    kept,
    started_with,
)


def changed(before: str, now: str) -> str:
    was, is_now = (started_with("train.py", None, text.split()) for text in (before, now))
    return in_words(changes(was, is_now))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("--lr 0.1 --steps 5", "--steps=5 --lr=0.1", ""),
        ("--lr 0.1", "--lr 0.2", "--lr is 0.2, was 0.1"),
        ("--lr=-1e-3", "--lr -1e-2", "--lr is -1e-2, was -1e-3"),
        ("--fast", "", "--fast is gone"),
        ("", "--fast --depth 3", "--fast is new; --depth 3 is new"),
        ("100 a", "200 a", "argument 1 is 200, was 100"),
        ("model.width=3", "model.width=4", "model.width is 4, was 3"),
        ("--sizes 1 2", "--sizes 1 2 3", "--sizes is 1 2 3, was 1 2"),
        ("--warm", "--warm 2", "--warm is 2, was without a value"),
        (
            "",
            "--a --b --c --d --e --f --g",
            "--a is new; --b is new; --c is new; --d is new; --e is new; and 2 more",
        ),
    ],
)
def test_changed_arguments_are_named(before: str, now: str, expected: str) -> None:
    assert changed(before, now) == expected


def test_changed_files_are_named(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "small.yaml"
    script.write_text("1")
    config.write_text("lr: 1")
    words = [f"--config={config}", "--out", str(tmp_path)]
    before = started_with("train.py", script, words)
    assert changes(before, started_with("./train.py", script, words)) == []
    script.write_text("2")
    config.write_text("lr: 2")
    now = started_with("./train.py", script, words)
    assert changes(before, now) == ["the script ./train.py has changed", f"{config} has changed"]
    assert (
        changes(before, started_with("other.py", script, words))[0] == "the script is other.py, was train.py"
    )
    script.unlink()
    assert changes(before, started_with("train.py", script, words))[1:] == []


def test_secrets_are_not_kept() -> None:
    words = (
        "--api-key abc --hf_token=abc --tokens 9 --password abc --url postgresql://ada:abc@host/x --seed 1"
    )
    start = started_with("train.py", None, words.split())
    assert "abc" not in msgspec.json.encode(start).decode()
    assert start.arguments.count(HIDDEN) == 2
    assert changed(words, words.replace("--tokens 9", "--tokens 8")) == "--tokens is 8, was 9"


@pytest.mark.parametrize(
    "words",
    [
        "wandb.api_key=SECRET",
        "--secret-key SECRET",
        "+logger.token=SECRET",
        "--aws-secret-access-key=SECRET",
        "s3.secret=SECRET",
        "--api.key=SECRET",
        "--access_key=SECRET",
        "--wandb-key SECRET",
        "--hftoken=SECRET",
        "--hfToken SECRET",
        "--password -SECRET",
        "--header Authorization:\N{NO-BREAK SPACE}Bearer\N{NO-BREAK SPACE}SECRET",
        "--auth Bearer\N{NO-BREAK SPACE}SECRET",
        "--user hf_SECRETSECRET",
        "https://host/path?token=SECRET",
        "MY_PASSWORD=7",
        "--url https://host/path?page=1&access_token=SECRET&size=1",
        "--url=https://host/path?sv=1&sig=SECRET",
        "https://host/path?X-Amz-Expires=60&X-Amz-Signature=SECRET",
        '--json {"api_key":"SECRET","query":"a=b"}',
        '--json={"headers":{"Authorization":"Basic\N{NO-BREAK SPACE}SECRET"}}',
        '--json {"text":"{\\"api_key\\":\\"SECRET\\"}"}',
        '--json {"max_tokens":512,"tokens":["SECRET"]}',
        "--settings {api_key:\N{NO-BREAK SPACE}SECRET,lr:1}",
        "--header X-Api-Key:SECRET",
        "--header Authorization:\N{NO-BREAK SPACE}Basic\N{NO-BREAK SPACE}SECRET",
        "--dsn host=a\N{NO-BREAK SPACE}password=SECRET",
        "--pw SECRET",
        "--db-pass SECRET",
        "--sig=SECRET&SECRET",
    ],
)
def test_no_form_of_a_secret_is_kept(words: str) -> None:
    kept_words = started_with("train.py", None, words.split(" ")).arguments
    assert not re.search("SECRET|7", " ".join(kept_words))
    assert any(HIDDEN in word for word in kept_words)


@pytest.mark.parametrize(
    "words",
    [
        "--num-key-value-heads 8",
        "--max_tokens=2e6",
        "--tokenizer gpt2",
        "--keyframes a",
        "path=a",
        "--url https://host:80/path?page=2&size=3",
        '--json {"max_tokens":512,"passes":3,"lr":0.1}',
    ],
)
def test_what_only_sounds_like_a_secret_is_kept(words: str) -> None:
    assert " ".join(started_with("train.py", None, words.split()).arguments) == words


@settings(max_examples=examples(50))
@given(st.lists(st.text(max_size=300) | st.binary(max_size=9).map(os.fsdecode), max_size=20), st.integers())
def test_any_arguments_are_kept_and_the_order_of_options_does_not_count(words: list[str], seed: int) -> None:
    start = started_with("train.py", None, words)
    assert changes(msgspec.json.decode(msgspec.json.encode(start), type=type(start)), start) == []
    options = [f"--n{number}={number}" for number in range(9)]
    random.Random(seed).shuffle(options)
    assert changed(" ".join(sorted(options)), " ".join(options)) == ""


def test_a_change_behind_very_many_arguments_is_seen() -> None:
    words = ["x"] * (ARGUMENTS_MAX + 5)
    assert changes(started_with("t", None, words), started_with("t", None, [*words[:-1], "y"]))


def test_it_is_kept_for_the_next_start(tmp_path: Path) -> None:
    assert kept(tmp_path, "mine") is None
    start = started_with("train.py", None, ["--lr", "1"])
    keep(tmp_path, "mine", start)
    assert kept(tmp_path, "mine") == start
    keep(tmp_path, "mine", start)
    (file,) = (tmp_path / "runs" / "mine").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600  # arguments are nobody else's business
    (tmp_path / "runs" / "mine" / "started.json").write_bytes(b"\xff{")
    assert kept(tmp_path, "mine") is None
    forget(tmp_path, "mine")
    assert not (tmp_path / "runs" / "mine").exists()
