"""The colours of the page: one for each category and layer, and no two alike that stand side by side.

Colour vision without one kind of cones is simulated with the matrices of Machado, Oliveira and Fernandes, "A
physiologically-based model for simulation of color vision deficiency" (2009), at full severity; distances are
Euclidean in CIELAB, where about 2 is just visible side by side.
"""

import re
from importlib.resources import files
from itertools import combinations
from math import dist

import pytest

from holdfast.economics.pricing.layers import LAYER_TITLES
from holdfast.ledger.categories import Category

DISTANCE_MIN = 12
Matrix = tuple[tuple[float, float, float], ...]
SIGHT: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
TO_XYZ: Matrix = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.089, 0.1192 / 1.089, 0.9505 / 1.089),
)
"""Linear sRGB to XYZ, relative to the white of D65."""


def colours(scheme: str, prefix: str = "c") -> dict[str, str]:
    """Category, or layer, to colour; the dark ones stand in their media query, which comes second."""
    css = files("holdfast.dashboard").joinpath("page.css").read_text(encoding="utf-8")
    part = css.split("(prefers-color-scheme: dark)")[scheme == "dark"].partition("* {")[0]
    found = re.findall(rf"\.{prefix}-(\w+) \{{ --c: (#[0-9a-f]{{6}}); \}}", part)
    assert len(found) == len(dict(found))
    return dict(found)


def apply(matrix: Matrix, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(colour: str, sight: Matrix) -> tuple[float, float, float]:
    encoded = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in encoded]
    seen = [min(1.0, max(0.0, value)) for value in apply(sight, linear)]
    x, y, z = (
        value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in apply(TO_XYZ, seen)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_category_has_a_colour(scheme: str) -> None:
    assert set(colours(scheme)) == {category.key for category in Category}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_layer_has_a_colour(scheme: str) -> None:
    assert list(colours(scheme, "l")) == list(LAYER_TITLES)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("prefix", ["c", "l"], ids=["categories", "layers"])
@pytest.mark.parametrize("sight", SIGHT.values(), ids=SIGHT)
def test_colours_can_be_told_apart(scheme: str, prefix: str, sight: Matrix) -> None:
    found = colours(scheme, prefix).items()
    plain = {key: lab(colour, sight) for key, colour in found if key != "unattributed"}
    near = {(one, other): dist(plain[one], plain[other]) for one, other in combinations(plain, 2)}
    assert {pair for pair, distance in near.items() if distance < DISTANCE_MIN} == set()


def test_unattributed_is_hatched() -> None:
    css = files("holdfast.dashboard").joinpath("page.css").read_text(encoding="utf-8")
    frame = files("holdfast.dashboard").joinpath("frame.html").read_text(encoding="utf-8")
    assert ".mark.c-unattributed { fill: url(#hatch); }" in css
    assert '<pattern id="hatch"' in frame
