"""Train a small GPT to write like Shakespeare, in a run that survives the death of its members.

    holdfast run --nproc-per-node 4 train.py        as many members as you like, up to one a lane
    python train.py                                 the same training, the same weights, in one process

What differs from an ordinary script is `main`, from `hf.join()` to `step.commit()`.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch

import holdfast.train as hf
from model import GPT, Text

HERE = Path(__file__).parent


def main(options: argparse.Namespace) -> None:
    # Warm processes wait in join(): everything before it is already done when one of them is needed.
    text = Text(options.text, options.context)
    learned = len(text) * 19 // 20
    batches = hf.MapData(torch.utils.data.Subset(text, range(learned)), options.batch, seed=options.seed)
    with hf.join() as run:
        torch.manual_seed(options.seed)  # every member builds the same model
        model = GPT(len(text.alphabet), context=options.context, layers=options.layers, width=options.width)
        model.to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine(options.steps))
        state = run.protect(model, optimizer, scheduler, lanes=8, seed=options.seed, clip_norm=1.0)

        for step in state.steps(options.steps):
            for lane in step.lanes:
                characters, following = (part.to(run.device) for part in batches(lane))
                lane.backward(model.loss(characters, following))
            step.commit()
            if run.is_main and (step.number % options.print_every == 0 or step.number == options.steps):
                print(f"step {step.number}: loss {step.loss:.4f}")

        # Each member evaluates some of the rest; in the end all members have all the losses.
        losses = run.share(range(learned, len(text), options.context), lambda at: evaluate(model, text[at]))
        if run.is_main:
            print(f"loss on text it has not seen: {sum(losses) / len(losses):.4f}")
            print(sample(model, text, options.seed))
            if options.out:
                torch.save(model.state_dict(), options.out)


def warm_up_then_cosine(steps: int, warm_up: int = 20, floor: float = 0.05) -> Callable[[int], float]:
    """The learning rate over the run, as a share of its peak."""

    def share(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return min((step + 1) / warm_up, floor + (1 - floor) * cosine)

    return share


def evaluate(model: GPT, stretch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The loss on one stretch of text, without dropout."""
    model.eval()
    device = next(model.parameters()).device
    characters, following = (part[None].to(device) for part in stretch)
    with torch.no_grad():
        return model.loss(characters, following).item()


def sample(model: GPT, text: Text, seed: int, count: int = 280) -> str:
    """What the model writes when it is Rosalind's turn."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    return text.decode(model.write(text.encode("ROSALIND\t"), count, generator))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small character-level GPT.")
    parser.add_argument("--text", type=Path, default=HERE / "text.txt", help="what it learns from")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--batch", type=int, default=8, help="stretches of text in each of the 8 lanes")
    parser.add_argument("--context", type=int, default=32, help="characters it sees at once")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--out", type=Path, help="where the weights are saved at the end")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
