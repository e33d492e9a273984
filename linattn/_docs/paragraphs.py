"""Descriptions of parameters and results, and remarks, each under its name.

`templates` puts them in place of ``$name``, and fills in the words in braces.

q
-
q : array_like, shape (..., n, d)
    Queries, float16, bfloat16, float32 or float64.  Other real dtypes are cast by
    {library}'s rules.  16-bit operands are computed in float32 and rounded once.

k
-
k : array_like, shape (..., n, d)
    Keys.

v
-
v : array_like, shape (..., n, m)
    Values.

all_keys
--------
k : array_like, shape (..., s, d)
    Keys.

all_values
----------
v : array_like, shape (..., s, m)
    Values.

token
-----
q, k : array_like, shape (..., d)
    Query and key of the token.
v : array_like, shape (..., m)
    Its value.

g
-
g : array_like, shape (..., n) or (..., n, d)
    Natural logarithm of the decay, one per token or one per token and key channel: 0
    keeps the memory, -inf clears it, a positive value makes it grow.  g is (..., n, d) if
    it has at least as many axes as each of q, k and v; a last axis of length 1 then
    applies to all channels.  It is converted to the dtype of the computation,
    float32 for 16-bit operands, and does not affect the result's dtype.

token_g
-------
g : array_like, shape (...) or (..., d)
    Natural logarithm of the token's decay, or of the decay of each key channel.  g is
    (..., d) if it has at least as many axes as each of q, k and v.

beta
----
beta : array_like, shape (..., n) or (..., n, m)
    Write strength, one per token or one per token and value channel.  beta is (..., n, m)
    if it has at least as many axes as each of q, k and v; a last axis of length 1 then
    applies to all channels.

token_beta
----------
beta : array_like, shape (...) or (..., m)
    Write strength of the token, or of each of its value channels.  beta is (..., m) if it
    has at least as many axes as each of q, k and v; a last axis of length 1 then applies
    to all channels.

state
-----
state : State
    The state before the token, of the result's dtype, or float32 if that has 16 bits:
    {state}.
$half_state

half_state
----------
    Of float16 or bfloat16, it is read exactly and computed with in float32, and each of its
    numbers is rounded once as it is written, to nearest even; not with float64 operands.

feature_map
-----------
feature_map : {maps} or FeatureMap
    The map phi of q and k, ``{default}`` by default.  ``'elu'`` is ``elu(x) + 1``.  An
    object of `linattn.feature_maps` stores phi(q) and phi(k) in separate {arrays}.

normalize
---------
normalize : bool, default True
    Divide by the sum of the weights.

eps
---
eps : float, default 1e-6
    Added once, to the whole denominator.  Not used if ``normalize`` is False.

scale
-----
scale : float, default 1.0
    Multiplies {scaled}.

key_lengths
-----------
key_lengths : array_like of int, broadcasting to the leading axes, optional
    How many tokens have a key.  Keys, values and everything else that is written from
    there on are ignored.  All outputs are computed; one without any key or state is 0.

cu_seqlens
----------
cu_seqlens : array_like of int, shape (sequences + 1,), optional
    Bounds of sequences packed along n: sequence i is ``cu_seqlens[i]`` to
    ``cu_seqlens[i + 1]`` and has its own state.  Sequences may be empty.

block
-----
block : int, optional
    All tokens of a block of this many read the state after the last one of them, with the
    decays and writes of later tokens of the block, and so they affect all outputs of their
    block.  The normaliser is that of this state.  Blocks begin anew at each packed
    sequence, and the last one may be shorter.  With 1 each token reads the state after
    itself, as by default; from n on every token reads all of them.

initial_state
-------------
initial_state : State, optional
    The state before the first token, {state}; zeros by default.
$packed_state

packed_state
------------
    With ``cu_seqlens``, {packed}.

state_indices
-------------
state_indices : array_like of int, shape (B,), optional
    Makes ``initial_state`` a pool: its first axis, or with ``cu_seqlens`` that of sequences,
    has any number of rows, and entry i of the batch begins with row ``state_indices[i]``.
    With ``return_state`` the state after the last token is written to that row, no other row
    changes, and the pool is returned.

state_indices_backward
----------------------
state_indices : array_like of int, shape (B,), optional
    As in the forward call; ``initial_state`` is the pool as it was before that call.  The
    gradient of the states is that of the rows, in the order of the indices.

state_indices_step
------------------
state_indices : array_like of int, shape (B,), optional
    Makes ``state`` a pool, whose first axis has any number of rows: entry i of the batch
    updates row ``state_indices[i]``, always in place.  No other row changes, and the pool is
    returned.

state_at
--------
state_at : array_like of int, shape (positions,), optional
    Numbers of tokens, 0 to n.  ``return_state`` then returns the states after each of these
    numbers of tokens instead of the last state, with an axis of positions where packed
    sequences have theirs.  The tokens between two positions are computed by themselves, a
    single one as a step.  Not with ``cu_seqlens``.

state_at_backward
-----------------
state_at : array_like of int, shape (positions,), optional
    As in the forward call; ``grad_state`` then has an axis of positions.

return_state
------------
return_state : bool, default False
    Also return the state after the last token.
$exact_state

exact_state
-----------
    ``"exact"`` returns one that carries what rounding took from its sums, a
    `linattn.ExactState`: in such calls, a sequence that is cut at multiples of 64 tokens has
    the bits of the uncut one.  Recurrences that lose nothing return their ordinary state.

grad_out
--------
grad_out : array_like, shape (..., n, m)
    The gradient of a scalar with respect to the output.  It may be an expanded
    (zero-stride) view.

grad_state
----------
grad_state : {kind}, optional
    The gradient with respect to the final state.

in_place
--------
in_place : bool, default False
    Write the new state to the {arrays} of ``state`` and return them.  They must be
    writeable and have all leading axes.

out
---
out : ndarray, shape (..., n, m), optional
    Where to write the result; of the result's dtype.  It may overlap an operand.

softmax_q
---------
q : array_like, shape (..., n, d)
    Queries, float32 or float64.  16-bit operands are computed in float32.  Other real
    dtypes are cast by {library}'s rules.

softmax_scale
-------------
scale : float, optional
    1 / sqrt(d) by default.

final_state
-----------
state : {kind}
    Only with ``return_state``: the state after the last token, with the fields of
    ``initial_state``.  You can cut a sequence anywhere and continue from it.

after_token
-----------
o : ndarray, shape (..., m)
state : State
    The state after the token.

rescaling
---------
`linattn.feature_maps.PositiveRandomFeatures` avoids this: it rescales as it goes.

gradients
---------
dq, dk, dv : ndarray
    Gradients, in the shapes of q, k and v.  Those of a broadcast operand are summed over
    the axes it was broadcast along.

gradient_of_state
-----------------
state : {kind}
    The gradient of the initial state, in its shape.  Only if ``initial_state`` or
    ``grad_state`` is given.
"""
