"""Exact minimisation of node and edge costs by eliminating one node after another: dynamic programming over a tree
decomposition.

To eliminate node v, add up its cost and every table in which it appears and take the minimum over its options:

    m(x_N) = min_s [ c_v(s) + sum of tables(s, x_N) ],     N the nodes that share a table with v.

The result is a table over N. `plan` fixes the order and prepares each step; `Order.run` fills the tables for given
node costs, so that a solve for many prices plans once. Nothing that `plan` decides depends on node costs, and nothing
is approximate. Rows are not looked at: callers put them into the node costs with a price (`priced`) or have none.

    views      options that a table cannot tell apart are one class to it: tables have an entry per class
    factor     a table that stores only what forbidden pairs leave
    ordering   which node next, by sizes alone; a table that is smaller in two steps is done in two
    relation   the combinations that forbidden pairs leave
    dense      a step over a full table
    sparse     a step over those combinations, where they are few
    order      all of it together
    several    all of it for several vectors of node costs
"""

from meshwright.select.elimination.order import Filled, Order, TooWideError, plan
from meshwright.select.elimination.several import least_of_each

__all__ = ["Filled", "Order", "TooWideError", "least_of_each", "plan"]
