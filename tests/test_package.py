"""What the package is to those who install it: its files, its extras, and who else may be in their folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_licence_that_is_named_is_there():
    named = PROJECT["project"]
    assert named["license"] == "Apache-2.0"
    assert named["license-files"] == ["LICENSE"]
    words = (ROOT / "LICENSE").read_text().split()
    assert words[:4] == ["Apache", "License", "Version", "2.0,"]


def test_every_package_is_typed_for_its_users():
    packages = [pattern.removesuffix("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
    for package in packages:
        assert (ROOT / package / "py.typed").is_file(), package
        assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"][package], package
