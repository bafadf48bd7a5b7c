"""The search methods, one per file, each `search(problem, budget, seed) -> (choice, bound, what was done)`.

auto         meshwright's own: reductions, exact elimination where narrow, bounds and large-neighbourhood search, HiGHS
ilp          HiGHS alone on the whole integer program
elimination  dynamic programming over a tree decomposition; rows by prices
beam         breadth-first over the nodes with a width
recursive    bisection: halves solved in turn given the other
mcmc         simulated annealing over one-node changes, in FlexFlow's manner
mcts         Monte Carlo tree search over the nodes
rl           a policy per node trained by policy gradient
"""
