"""Make the changes of docs/porting.md to nanoGPT's train.py, and count them.

    python examples/nanogpt/port.py path/to/nanoGPT      writes train_holdfast.py beside its train.py

A heading `### 27-28: ...` names lines of the original; the lines with a `+` under it take their place.
"""

import hashlib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
ORIGINAL_SHA256 = "413bd97b40bb400a2a0d01230e2946f056c263ebac1b7281c2367d964a123085"
CHANGE = re.compile(r"^### (\d+)(?:-(\d+))?: .*?\n(.*?)(?=^#)", re.MULTILINE | re.DOTALL)
JOIN = "with hf.join() as run:"


def changes(page: str) -> list[tuple[int, int, list[str]]]:
    """First line, last line and replacement of each change; the last change first, so that numbers stay
    valid.
    """
    found = []
    for first, last, text in CHANGE.findall(page + "\n#"):
        added = [line[1:] for line in text.splitlines() if line.startswith("+")]
        found.append((int(first), int(last or first), added))
    return found[::-1]


def ported(original: list[str], page: str) -> list[str]:
    lines = list(original)
    for first, last, instead in changes(page):
        lines[first - 1 : last] = instead
    join = lines.index(JOIN)
    return lines[: join + 1] + [f"    {line}" if line else line for line in lines[join + 1 :]]


def main(checkout: Path) -> None:
    original, page = (checkout / "train.py").read_bytes(), PAGE.read_text(encoding="utf-8")
    if hashlib.sha256(original).hexdigest() != ORIGINAL_SHA256:
        sys.exit(f"{checkout / 'train.py'} is not the version that docs/porting.md speaks of.")
    lines = ported(original.decode().splitlines(), page)
    target = checkout / "train_holdfast.py"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    added = sum(len(instead) for _, _, instead in changes(page))
    removed = sum(last - first + 1 for first, last, _ in changes(page))
    print(f"{target}: {added} lines added, {removed} removed, the rest indented")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
