"""Discovery of rules: enumerate, fingerprint, lift, prove, drop what is implied.

    algebra      the ops over tensors with anonymous axes, evaluated in batches
    enumeration  all terms up to a size, one representative per class of equals carried to the next size
    workers      spawned processes, each with the values of the representatives
    lift         principal types: which axes of two equal terms are the same axis -> rule text over named axes
    draft        a rule in pieces, and its text
    widen        more axes, more tensors' axes, any function: as far as the prover goes along
    implied      what the library and the rules found so far already say, by a small e-graph
    judge        what becomes of a candidate
    merges       two equations that give both parts of one product, as a rule with two roots
    bilinear     convolutions with fewer products: a search of its own
    taso         coverage: what TASO's generator finds
    discover     the run: levels, workers, budget, resumption

A term is enumerated over axes without names that all have one length, so that everything fits together; its principal
type says afterwards which of them had to be the same axis.  One enumerated pair thus stands for all namings of it.
"""
