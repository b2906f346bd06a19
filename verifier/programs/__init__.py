"""Programs with concrete sizes: labels of elements, for the validation of plans."""
