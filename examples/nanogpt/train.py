"""nanoGPT's training script, in a run that survives the death of its members.

    python examples/nanogpt/prepare.py                                                    writes data/play
    holdfast run --nproc-per-node 4 examples/nanogpt/train.py examples/nanogpt/play.py    four members
    python examples/nanogpt/train.py examples/nanogpt/play.py --max_iters=50              the same, alone

Arguments are nanoGPT's: a file with settings, then `--name=value` for single ones. `--nanogpt=DIR` takes the
model from a checkout of nanoGPT instead of model.py. docs/porting.md goes through the changes one by one.
"""

import math
import pickle
import runpy
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast.train as hf

SPLITS = ("train", "val")
GPT2_VOCABULARY = 50304
"""GPT-2's 50257 tokens, rounded up to a multiple of 64."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """nanoGPT's settings with their defaults, and four new ones at the end.

    gradient_accumulation_steps counts micro-batches of a whole step, as in nanoGPT; the lanes share them.
    rehearse: a warm process compiles before it is needed. nanogpt: a checkout whose model is trained.
    """

    out_dir: str = "out"
    eval_interval: int = 2000
    log_interval: int = 1
    eval_iters: int = 200
    eval_only: bool = False
    always_save_checkpoint: bool = True
    init_from: str = "scratch"
    wandb_log: bool = False
    wandb_project: str = "owt"
    wandb_run_name: str = "gpt2"
    dataset: str = "openwebtext"
    gradient_accumulation_steps: int = 5 * 8
    batch_size: int = 12
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = False
    learning_rate: float = 6e-4
    max_iters: int = 600_000
    weight_decay: float = 1e-1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    decay_lr: bool = True
    warmup_iters: int = 2000
    lr_decay_iters: int = 600_000
    min_lr: float = 6e-5
    dtype: str = "bfloat16"
    compile: bool = True
    lanes: int = 8
    seed: int = 1337
    rehearse: bool = True
    nanogpt: str = ""


class Batches:
    """nanoGPT's data: a long row of tokens for each split, from which every batch takes pieces at random."""

    def __init__(self, config: Config) -> None:
        self._folder = Path("data") / config.dataset
        self._config = config
        meta = self._folder / "meta.pkl"
        self.vocabulary = pickle.loads(meta.read_bytes())["vocab_size"] if meta.exists() else GPT2_VOCABULARY

    def __call__(self, split: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Drawn by torch's generator, which every lane begins with a state of its own."""
        length = self._config.block_size
        # Opened anew each time: a mapping that is kept would count every page it ever read as this process's
        # memory.
        tokens = np.memmap(self._folder / f"{split}.bin", dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - length, (self._config.batch_size,)).tolist()
        pieces = torch.from_numpy(np.stack([tokens[at : at + length + 1] for at in starts]).astype(np.int64))
        if device.type == "cuda":
            pieces = pieces.pin_memory()
        pieces = pieces.to(device, non_blocking=True)
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def main(config: Config) -> None:
    # Everything before join() is already done when a warm process is needed.
    sys.path[:0] = [config.nanogpt] if config.nanogpt else []
    gpt = import_module("model")
    batches = Batches(config)
    accumulate = config.gradient_accumulation_steps // config.lanes

    def rehearse(device: torch.device) -> None:
        """In a warm process: compile what a step runs, so that no replacement has to."""
        model, _ = build(gpt, config, batches.vocabulary)
        with autocast(config, device):
            _, loss = torch.compile(model.to(device))(*batches("train", device))
        (loss / accumulate).backward()

    with hf.join(warm=rehearse if config.compile and config.rehearse else None) as run:
        device = run.device
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        model, model_args = build(gpt, config, batches.vocabulary)
        model.to(device)
        betas = config.beta1, config.beta2
        optimizer = model.configure_optimizers(config.weight_decay, config.learning_rate, betas, device.type)
        state = run.protect(
            *(model, optimizer, torch.amp.GradScaler(device.type, enabled=config.dtype == "float16")),
            lanes=config.lanes,
            seed=config.seed,
            accumulate=accumulate,
            clip_norm=config.grad_clip or math.inf,  # math.inf clips nothing, but measures the norm
        )
        compiled = torch.compile(model) if config.compile else model
        context = autocast(config, device)

        @torch.no_grad()
        def loss_of(batch: tuple[str, int]) -> float:
            """The loss of one batch; its number chose the generator's state."""
            with context:
                return compiled(*batches(batch[0], device))[1].item()

        def estimate_loss() -> dict[str, float]:
            """Each member computes some of the losses, and has all of them in the end."""
            model.eval()
            count = config.eval_iters
            shared = run.share([(split, number) for split in SPLITS for number in range(count)], loss_of)
            model.train()
            return {split: sum(shared[at * count :][:count]) / count for at, split in enumerate(SPLITS)}

        def evaluate() -> dict[str, float]:
            """Print the losses, and keep the model if it is the best so far."""
            losses, iteration = estimate_loss(), state.version
            if run.is_main:
                told = ", ".join(f"{split} loss {loss:.4f}" for split, loss in losses.items())
                print(f"step {iteration}: {told}", flush=True)
                is_best = losses["val"] < best_before(iteration, config)
                if iteration and (is_best or config.always_save_checkpoint):
                    save(config, model, optimizer, model_args, iteration, losses["val"])
            return {f"{split}/loss": loss for split, loss in losses.items()}

        Path(config.out_dir).mkdir(parents=True, exist_ok=True)
        log = run.log(wandb_of(config) if config.wandb_log else Path(config.out_dir) / "log.jsonl")
        evaluate()
        running_mfu, began_s = -1.0, time.monotonic()
        for step in state.steps(0 if config.eval_only else config.max_iters):
            for group in optimizer.param_groups:
                group["lr"] = rate(config, step.number - 1)
            micro_batches = 0
            for lane in step.lanes:
                for _ in range(accumulate):
                    with context:
                        _, loss = compiled(*batches("train", device))
                    lane.backward(loss / accumulate)
                    micro_batches += 1
            step.commit()

            now_s = time.monotonic()
            seconds, began_s = now_s - began_s, now_s
            if micro_batches:  # zero in a step that others finished
                mfu = model.estimate_mfu(config.batch_size * micro_batches, seconds)
                running_mfu = mfu if running_mfu < 0 else 0.9 * running_mfu + 0.1 * mfu
            if step.number % config.log_interval == 0 and run.is_main:
                took = f"time {seconds * 1000:.2f}ms, mfu {running_mfu * 100:.2f}%"
                print(f"iter {step.number}: loss {step.loss:.4f}, {took}", flush=True)
            losses = evaluate() if step.number % config.eval_interval == 0 else {}
            log(step, loss=step.loss, lr=step.lr, grad_norm=step.grad_norm, **losses)


def build(gpt: Any, config: Config, vocabulary: int) -> tuple[Any, dict[str, Any]]:
    """A new model or a published GPT-2, and its arguments. gpt: the module model.py."""
    torch.manual_seed(config.seed)
    names = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout")
    if config.init_from == "scratch":
        model_args = {name: getattr(config, name) for name in names} | {"vocab_size": vocabulary}
        return gpt.GPT(gpt.GPTConfig(**model_args)), model_args
    model = gpt.GPT.from_pretrained(config.init_from, {"dropout": config.dropout})
    if config.block_size < model.config.block_size:
        model.crop_block_size(config.block_size)
    return model, {name: getattr(model.config, name) for name in (*names, "vocab_size")}


def autocast(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    if device.type == "cpu":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, config.dtype))


def rate(config: Config, iteration: int) -> float:
    """The learning rate: up along a line, then down along a cosine."""
    if not config.decay_lr:
        return config.learning_rate
    if iteration < config.warmup_iters:
        return config.learning_rate * (iteration + 1) / (config.warmup_iters + 1)
    decay = max(1, config.lr_decay_iters - config.warmup_iters)
    share = min(1.0, (iteration - config.warmup_iters) / decay)
    return config.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (config.learning_rate - config.min_lr)


def save(
    config: Config, model: Any, optimizer: Any, model_args: dict[str, Any], iteration: int, loss: float
) -> None:
    """Write the file that nanoGPT's sample.py reads. It gets its name only once it is complete."""
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "model_args": model_args,
        "iter_num": iteration,
        "best_val_loss": loss,
        "config": asdict(config),
    }
    folder = Path(config.out_dir)
    torch.save(checkpoint, folder / "ckpt.pt.new")
    (folder / "ckpt.pt.new").replace(folder / "ckpt.pt")


def best_before(iteration: int, config: Config) -> float:
    """The loss of the model in ckpt.pt. It is not kept in a variable, which would be lost with its member."""
    path = Path(config.out_dir) / "ckpt.pt"
    if not path.exists():
        return math.inf
    saved = torch.load(path, mmap=True)
    return saved["best_val_loss"] if saved["iter_num"] < iteration else math.inf  # not from an earlier run


def wandb_of(config: Config) -> Callable[[int, Mapping[str, Any]], None]:
    """Logs to W&B. The first member that logs begins it, and the next one continues if that member dies."""

    @cache
    def begun() -> Any:
        import wandb

        name = config.wandb_run_name
        return wandb.init(
            project=config.wandb_project, name=name, id=name, resume="allow", config=asdict(config)
        )

    return lambda step, values: begun().log(values, step=step)


def configured(arguments: Iterable[str]) -> Config:
    """The defaults, changed by files of settings and by `--name=value`, in order."""
    config = Config()
    known = {field.name: type(field.default) for field in fields(Config)}
    for argument in arguments:
        if argument.startswith("--"):
            name, _, text = argument[2:].partition("=")
            given = {name: _value(text)}
        else:
            made = runpy.run_path(argument)
            given = {name: value for name, value in made.items() if isinstance(value, int | float | str)}
            given = {name: value for name, value in given.items() if not name.startswith("_")}
        for name, value in given.items():
            if name not in known or type(value) is not known[name]:
                sys.exit(f"{argument}: there is no setting {name} that could be {value!r}.")
        config = replace(config, **given)
    if config.gradient_accumulation_steps % config.lanes:
        sys.exit(f"gradient_accumulation_steps must be a multiple of lanes, which is {config.lanes}.")
    return config


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


if __name__ == "__main__":
    main(configured(sys.argv[1:]))
