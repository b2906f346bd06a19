"""Discovery of rules: enumerate, fingerprint, lift, prove, and drop implied rules.

    algebra      The ops over tensors with anonymous axes, evaluated in batches.
    enumeration  All terms up to a size; one representative per class of equals is carried to the next size.
    workers      Spawned processes, each with the values of the representatives.
    lift         Principal types: which axes of two equal terms are the same axis -> rule text over named axes.
    draft        A rule in pieces, and its text.
    widen        Generalises a rule to more axes, more tensors' axes, any function: as far as the prover proves it.
    implied      Decides by a small e-graph whether the library and the rules found so far imply a rule.
    judge        Decides the fate of a candidate.
    merges       Two equations for both parts of one product, as a rule with two roots.
    bilinear     Convolutions with fewer products: a search of its own.
    taso         Coverage: the substitutions that TASO's generator finds.
    discover     The run: levels, workers, budget, resumption.

A term is enumerated over axes without names that all have one length, so that all terms fit together.  Its principal
type determines afterwards which of them had to be the same axis.  One enumerated pair thus stands for all its namings.
"""
