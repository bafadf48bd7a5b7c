"""Simplifications that keep the optimum, and `reduce`, which runs them to a fixpoint.

Each file has an `apply` that changes a `Graph` and leaves steps with `invert` on its trail (`meshwright.select.graph`):

    twins       options that no edge and no row can tell apart, on the flat arrays, before a graph is built
    forbid      options that cost +inf, find no partner over an edge, or do not fit a row on their own
    fold        nodes with one option: their cost, edges and bytes move to where they are felt
    separate    edges whose matrix is a row vector plus a column vector: they move into node costs
    contract    followers: nodes whose option is determined by a neighbour's merge into it
    dominate    options that another one beats whatever the neighbours do, in cost and in bytes
    eliminate   nodes of degree 0, 1 or 2 that use no bytes: min-plus products
    rows        rows that cannot bind or that another row implies; live sets that are not maximal
    components  connected components that use no bytes are solved on their own
    parts       what is left falls into problems of its own where neither edges nor rows join it
    compact     options that one edge cannot tell apart: how an edge is written down, for HiGHS

Parallel edges merge when a graph is built (`Graph.join`).
"""

from meshwright.select.reductions.fixpoint import reduce

__all__ = ["reduce"]
