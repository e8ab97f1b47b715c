"""The engine in memory: array routines over packed data, compiled by Numba.

Message passing reads and writes a :class:`.tables.Passing`: the :class:`.layout.Layout` (hubs, links, clusters of all
instances), scores at some weights, counting numbers, multipliers and beliefs. It is called for a block of instances on
a thread of its own, without Python's lock. The star update, m = E'u in it, and what follows from it, D, beliefs and
counts, have one source in linear space (:mod:`.linear` and :mod:`.pair_evaluation`) and one in log space:

1. Linear space, compiled for K states, with unrolled loops over them: all clusters are pairs of number 1, all hubs have
   the same number K of states (2 to 20), and there are at least 20,000 link states, or 2,000 where K is 2, so that
   compiling for K pays.
2. Linear space, the same source with loops over any number of states: all clusters of the instance are pairs, of any
   numbers and states.
3. :mod:`.stars`, in log space: everything else, and damped updates unless learning halves their steps. A pair whose
   table is narrow still takes its message from the table's exponential.

In 1 and 2 the range of floating point is checked (:data:`.arithmetic.WIDEST` and its neighbours, the one notion of
what is safe): an instance that leaves it, or has forbidden states, is not ``done`` and is left to 3, from the
multipliers as they were. :mod:`.arithmetic` has what 1 and 2 share below: loops over n
entries, n known to the compiler or not.

Threads take blocks of instances. A graph with loops of 20,000 hubs and more, all clusters pairs, is itself cut into
pieces that threads take (:mod:`.pieces`), by the functions of 1 and 2, unless it is so entangled that no order of its
hubs leaves stretches which touch their neighbours alone.

Schedules call these updates: sequential sweeps for learning and inference (``evaluate_pairs`` and
``evaluate_instances``), and parallel and residual rounds of inference (:mod:`.schedules`). On trees two
sweeps of belief propagation are exact, whatever the route; those of pairs multiply half as often (``evaluate_trees``).

Beside them: :mod:`.junction` (exact inference, also for many rows of evidence), :mod:`.decoding`,
:mod:`.assignments` and :mod:`.neighbourhoods` (most probable assignments), :mod:`.mean_field`, :mod:`.gibbs`,
:mod:`.elimination` and :mod:`.orders` (of graphs), and :mod:`.sparse` (inputs).
"""
