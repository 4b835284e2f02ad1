"""Write a text as nanoGPT's data: `train.bin`, `val.bin` and `meta.pkl`, a token for each character.

    python examples/nanogpt/prepare.py [TEXT [FOLDER]]

Without arguments it takes the play of examples/char_gpt, and writes to data/play in the working directory.
"""

import pickle
import sys
from pathlib import Path

import numpy as np

TEXT = Path(__file__).parents[1] / "char_gpt" / "text.txt"
TRAIN_SHARE = 0.9


def prepare(text: str, folder: Path) -> int:
    """Write the files. Returns the number of different characters."""
    alphabet = sorted(set(text))
    codes = {character: code for code, character in enumerate(alphabet)}
    tokens = np.array([codes[character] for character in text], dtype=np.uint16)
    middle = int(len(tokens) * TRAIN_SHARE)
    folder.mkdir(parents=True, exist_ok=True)
    tokens[:middle].tofile(folder / "train.bin")
    tokens[middle:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(alphabet), "stoi": codes, "itos": dict(enumerate(alphabet))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return len(alphabet)


if __name__ == "__main__":
    source, target, *_ = (*map(Path, sys.argv[1:]), *(TEXT, Path("data/play"))[len(sys.argv) - 1 :])
    print(f"{target}: {prepare(source.read_text(encoding='utf-8'), target)} characters in the alphabet")
