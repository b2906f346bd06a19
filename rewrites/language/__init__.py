"""The rule language: terms over named axes, their text, names and shapes."""
