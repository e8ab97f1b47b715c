"""The engine in memory: array routines over packed data, compiled by Numba.

Every routine reads a :class:`.layout.Layout` (hubs, links, clusters of all instances) and :class:`.tables.Tables`
(scores at some weights), and is called for a block of instances on a thread of its own, without Python's lock. The
star update and what follows from it, D, beliefs and counts, have one log-space form, which serves every model, and
linear-space forms, which are faster where they are safe. Which one an evaluation takes is decided per block and per
instance:

1. :mod:`.equal_pairs`: all clusters are pairs of number 1, all hubs have the same number K of states (2 to 20),
   nothing is forbidden or damped, and there are at least 20,000 link states, so that compiling for this K pays. Loops
   over states are unrolled. Without sweeps (``evaluate_given``), without agreement (``evaluate_apart``), or with both
   (``sweep_uniform``).
2. :mod:`.pairs`: all clusters of the instance are pairs, of any numbers and states, and nothing is damped.
3. :mod:`.stars`, in log space: everything else. A pair whose table is narrow still takes its message from the table's
   exponential.

Before each step of 1 and 2 the range of floating point is checked (:data:`.arithmetic.WIDEST` and its neighbours, the
one notion of what is safe): an instance that leaves it is not ``done`` and is left to 3, from the multipliers as they
were.

Schedules of message passing call the same updates: sequential sweeps (:mod:`.schedules`), parallel updates
(:mod:`.flooding`, with a linear-space form for Bethe's numbers) and by residual (:mod:`.residual`, likewise). On
trees two sweeps of belief propagation are exact, whatever the route.

Beside them: :mod:`.junction` (exact inference), :mod:`.decoding`, :mod:`.assignments` and :mod:`.forest_optimum`
(most probable assignments), :mod:`.mean_field`, :mod:`.gibbs`, :mod:`.unified_scaling`, :mod:`.recession` (whether an
optimum exists), :mod:`.elimination` and :mod:`.orders` (of graphs), :mod:`.sparse`, :mod:`.long_vectors` and
:mod:`.names` (inputs and weights), :mod:`.row_sums` (scores of conditionals), :mod:`.threads`.
"""
