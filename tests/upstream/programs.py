"""The programs, each as a user of its library writes it."""

from __future__ import annotations

from tests.upstream import inference, networks, science, training
from tests.upstream.registry import PROGRAMS, Built, Draw, Program

__all__ = ["PROGRAMS", "Built", "Draw", "Program", "inference", "networks", "science", "training"]
