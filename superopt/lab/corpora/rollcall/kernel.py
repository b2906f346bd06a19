"""Identities that whole kernels rest on: attention in blocks, folded normalisations and scales, fast products."""

RULES = """
flash-attention-merge: Q[*b *q d]  K[*b k d]  V[*b k *e]  L[*b k2 d]  U[*b k2 *e]
  dot(exp(dot(Q, concat(K, L, k), d)) / sum(exp(dot(Q, concat(K, L, k), d)), k), concat(V, U, k), k)
    == (dot(exp(X - M), V, k) + dot(exp(Y - M), U, k)) / (sum(exp(X - M), k) + sum(exp(Y - M), k))
  with X = dot(Q, K, d)
  with Y = dot(Q, L, d)
  with M = maximum(max(X, k), max(Y, k))
  if k >= 1, k2 >= 1
  source kernel: FlashAttention, the merge of two blocks of keys

flash-attention-rescaled: Q[*b *q d]  K[*b k d]  V[*b k *e]  L[*b k2 d]  U[*b k2 *e]
  dot(exp(dot(Q, concat(K, L, k), d)) / sum(exp(dot(Q, concat(K, L, k), d)), k), concat(V, U, k), k)
    == (dot(exp(X - A), V, k) * exp(A - M) + dot(exp(Y - B), U, k) * exp(B - M))
       / (sum(exp(X - A), k) * exp(A - M) + sum(exp(Y - B), k) * exp(B - M))
  with X = dot(Q, K, d)
  with Y = dot(Q, L, d)
  with A = max(X, k)
  with B = max(Y, k)
  with M = maximum(A, B)
  if k >= 1, k2 >= 1
  source kernel: FlashAttention, each block with its own maximum, rescaled

softmax-in-blocks: X[*b n]  extra o i  q in 2|4
  exp(X - max(X, n)) / sum(exp(X - max(X, n)), n)
    == merge(exp(Y - M) / sum(sum(exp(Y - N), i) * exp(N - M), o), o, i, n)
  with Y = split(X, n, o, i(q))
  with N = max(Y, i)
  with M = max(N, o)
  if n % q == 0, n >= 1
  mode proof
  source kernel: two-pass softmax in blocks of any size, any number of blocks

online-softmax-unit: M[*b]  S[*b]
  maximum(M, -inf), S * exp(M - maximum(M, -inf)) + 0 * exp(-inf - maximum(M, -inf))  ==  M, S
  mode proof
  source kernel: online softmax, the unit (-inf, 0) of the merge

online-softmax-associative: M[*b]  S[*b]  N[*b]  T[*b]  P[*b]  U[*b]
  maximum(A, P), (S * exp(M - A) + T * exp(N - A)) * exp(A - maximum(A, P)) + U * exp(P - maximum(A, P))
    == maximum(M, D), S * exp(M - maximum(M, D)) + (T * exp(N - D) + U * exp(P - D)) * exp(D - maximum(M, D))
  with A = maximum(M, N)
  with D = maximum(N, P)
  mode proof
  source kernel: online softmax, the merge of (maximum, sum) is associative

online-softmax-step: X[*b k]  Y[*b k2]
  maximum(A, B), sum(exp(X - A), k) * exp(A - maximum(A, B)) + sum(exp(Y - B), k) * exp(B - maximum(A, B))
    == max(concat(X, Y, k), k), sum(exp(concat(X, Y, k) - max(concat(X, Y, k), k)), k)
  with A = max(X, k)
  with B = max(Y, k)
  if k >= 1, k2 >= 1
  mode proof
  source kernel: online softmax, the merge of two blocks is the block of both; any number of blocks by induction

rmsnorm-into-weights: A[*a *k]  V[*a]  G[*k]  W[*k *n]
  dot(A * rsqrt(V) * G, W, k)  ==  dot(A, W * G, k) * rsqrt(V)
  source kernel: RMSNorm folded into the product behind it

layernorm-into-weights: X[*a *k]  M[*a]  V[*a]  G[*k]  B[*k]  W[*k *n]
  dot((X - M) * V * G + B, W, k)  ==  (dot(X, W * G, k) - M * sum(W * G, k)) * V + dot(B, W, k)
  source kernel: LayerNorm folded into the product behind it

batchnorm-into-conv: X[*b *g *c *s]  W[*g *o *c *s2]  A[*g *o]  M[*g *o]  B[*g *o]  V[*g *o]
  (conv(X, W, c, s(t, p, q, u, d)) - M) / sqrt(V) * A + B
    == conv(X, W * (A / sqrt(V)), c, s(t, p, q, u, d)) + (B - M * (A / sqrt(V)))
  source kernel: batch normalisation (inference) folded into a convolution

scale-into-conv-before-relu: X[*b *g *c *s]  W[*g *o *c *s2]  S[*g *o]
  maximum(conv(X, W, c, s(t, p, q, u, d)), 0) * S  ==  maximum(conv(X, W * S, c, s(t, p, q, u, d)), 0)
  given ge(S, 0)
  mode proof
  source kernel: a scale behind conv and relu folded into the kernel, for scales that are not negative

lora-into-weights: X[*m *k]  W[*k *n]  A[*k *r]  B[*r *n]
  dot(X, W, k) + dot(dot(X, A, k), B, r)  ==  dot(X, W + dot(A, B, r), k)
  source kernel: LoRA adapters folded into the weights

causal-block-skipped: Q[*b q d]  K[*b k d]  V[*b k *e]  L[*b k2 d]  U[*b k2 *e]
  dot(A / sum(A, k), concat(V, U, k), k)  ==  dot(B / sum(B, k), V, k)
  with A = exp(where(ge(iota(q), concat(iota(k), iota(k2) + count(k), k)), dot(Q, concat(K, L, k), d), -inf))
  with B = exp(where(ge(iota(q), iota(k)), dot(Q, K, d), -inf))
  if q <= k
  mode proof
  source kernel: causal attention skips the blocks of keys behind the last query

grouped-query-heads: Q[*b g h *q d]  K[*b g *k d]  extra n
  dot(merge(Q, g, h, n), merge(bcast(K, h), g, h, n), d)  ==  merge(dot(Q, K, d), g, h, n)
  if h >= 1
  mode proof
  source kernel: grouped-query attention, heads of one group share keys

strassen: A[*b m k]  B[*b m k]  C[*b m k]  D[*b m k]  E[*b k n]  F[*b k n]  G[*b k n]  H[*b k n]
  dot(concat(concat(A, B, k), concat(C, D, k), m), concat(concat(E, F, n), concat(G, H, n), k), k)
    == concat(concat(P + S - T + Z, R + T, n), concat(Q + S, P - Q + R + Y, n), m)
  with P = dot(A + D, E + H, k)
  with Q = dot(C + D, E, k)
  with R = dot(A, F - H, k)
  with S = dot(D, G - E, k)
  with T = dot(A + B, H, k)
  with Y = dot(C - A, E + F, k)
  with Z = dot(B - D, G + H, k)
  source kernel: Strassen 1969, blocks of any size

attention-scale-across: Q[*b *q *d]  K[*b *k *d]  S[]
  dot(Q, K, d) * S  ==  dot(Q * S, K, d)
  source kernel: the scale of attention moved to the queries
"""
