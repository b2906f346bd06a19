"""Families of training programs by name; a family describes seeded variants of one kind of network."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.lab.training.families import convnets, mobile, products, sequences, tables, transformers
from superopt.lab.training.program import Maker, TrainingProgram, describe

VARIANTS = 10
LARGE = 7  # variants from this number on lean towards large sizes
FAMILIES: dict[str, Maker] = {
    **convnets.FAMILIES,
    **mobile.FAMILIES,
    **transformers.FAMILIES,
    **sequences.FAMILIES,
    **products.FAMILIES,
    **tables.FAMILIES,
}


def program(family: str, number: int) -> TrainingProgram:
    """One variant of a family."""
    return describe(family, number, FAMILIES[family], large=number >= LARGE)


def names() -> Iterator[tuple[str, int]]:
    """(family, variant) of every program."""
    for number in range(VARIANTS):
        for family in FAMILIES:
            yield family, number
