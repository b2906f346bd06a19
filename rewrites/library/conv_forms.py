"""Convolutions in other forms: patches, shifted sums, Winograd, space to depth, groups merged or apart.

A form with a dozen ops is a macro: one e-node in the e-graph, expanded when it is built.  Its transforms of a frozen
kernel (Winograd, padding, block-diagonal form) are computed ahead of time.
"""

RULES = """
conv-im2col: X[*b c *s]  W[o c *s2]  extra *u
  conv(X, W, c, s(t, p, q, 1, d))
    == dot(stack(r < s2, slice(pad(X, 0, s(p, q)), s(r * d, s + p + q - (s2 - r - 1) * d, t)), u, c),
           ren(W, s, u), c, u)
  prefer 1 < prod(s2) and prod(s2) <= 49
  mode macro

conv-shifted-dots: X[*b *g c *s]  W[*g o c *s2]
  conv(X, W, c, s(t, p, q, 1, d))
    == sigma(r < s2, dot(slice(pad(X, 0, s(p, q)), s(r * d, s + p + q - (s2 - r - 1) * d, t)), at(W, s(r)), c))
  prefer 1 < prod(s2) and prod(s2) <= 9 and (1 < c or prod(g) == 1)
  mode macro

depthwise-shifts: X[*b *g *s]  W[*g *s2]
  conv(X, W, s(t, p, q, 1, d))
    == sigma(r < s2, slice(pad(X, 0, s(p, q)), s(r * d, s + p + q - (s2 - r - 1) * d, t)) * at(W, s(r)))
  prefer prod(s2) <= 25
  mode macro

conv-space-to-depth: X[*b c *s]  W[o c *s2]  extra *v
  conv(X, W, c, s(t, p, q))
    == conv(split(pad(X, 0, s(p, (s + p + q - s2) // t * t + (s2 + t - 1) // t * t - s - p)), s, s, v(t)),
            split(pad(W, 0, s(0, (s2 + t - 1) // t * t - s2)), s, s, v(t)), c, v, s(1))
  prefer frozen(W) and t == 2 and c <= 8
  mode macro

conv-undilate: X[*b *g c *s]  W[*g o c *s2]
  conv(X, W, c, s(t, p, q, u, d))  ==  conv(X, pad(W, 0, s(0, 0, d - 1)), c, s(t, p, q, u))
  prefer frozen(W) and d > 1
  mode macro

conv-winograd: X[*b c s v]  W[o c s2 v2]  extra j
  conv(X, W, c, s(1, p, q), v(t, l, h, u, d))
    == slice(merge(concat(unit(K + L + M, j), unit(L - M - N, j), j), s, j, s), s(0, s + p + q - 2))
  with Z = pad(X, 0, s(p, q + (s + p + q) % 2))
  with B = slice(Z, s(1, s + p + q + (s + p + q) % 2 - 2, 2))
  with C = slice(Z, s(2, s + p + q + (s + p + q) % 2, 2))
  with U = at(W, s(0)) + at(W, s(2))
  with K = conv(slice(Z, s(0, s + p + q + (s + p + q) % 2 - 2, 2)) - C, at(W, s(0)), c, v(t, l, h, u, d))
  with L = conv(B + C, (U + at(W, s(1))) * 0.5, c, v(t, l, h, u, d))
  with M = conv(C - B, (U - at(W, s(1))) * 0.5, c, v(t, l, h, u, d))
  with N = conv(B - slice(Z, s(3, s + p + q + (s + p + q) % 2, 2)), at(W, s(2)), c, v(t, l, h, u, d))
  if s2 == 3
  prefer frozen(W) and c >= 16
  mode macro
  source Winograd 1980; Lavin and Gray 2016: F(2, 3) along one axis

conv-winograd-four: X[*b c s v]  W[o c s2 v2]  extra j
  conv(X, W, c, s(1, p, q), v(t, l, h, u, d))
    == slice(merge(concat(unit(T0 + T1 + T2, j), unit(T3 + 2 * T4, j), unit(T1 + 4 * T2, j),
                          unit(T3 + 8 * T4 + T5, j), j), s, j, s), s(0, s + p + q - 2))
  with Z = pad(X, 0, s(p, (s + p + q + 1) // 4 * 4 + 2 - s - p))
  with D1 = slice(Z, s(1, (s + p + q + 1) // 4 * 4, 4))
  with D2 = slice(Z, s(2, (s + p + q + 1) // 4 * 4 + 2, 4))
  with D3 = slice(Z, s(3, (s + p + q + 1) // 4 * 4 + 2, 4))
  with D4 = slice(Z, s(4, (s + p + q + 1) // 4 * 4 + 2, 4))
  with A = D4 - 4 * D2
  with B = D3 - 4 * D1
  with C = D4 - D2
  with E = 2 * (D3 - D1)
  with U = at(W, s(0)) + at(W, s(2))
  with V = at(W, s(0)) + 4 * at(W, s(2))
  with K = conv(A + B, (U + at(W, s(1))) / (-6), c, v(t, l, h, u, d))
  with L = conv(A - B, (U - at(W, s(1))) / (-6), c, v(t, l, h, u, d))
  with M = conv(C + E, (V + 2 * at(W, s(1))) / 24, c, v(t, l, h, u, d))
  with N = conv(C - E, (V - 2 * at(W, s(1))) / 24, c, v(t, l, h, u, d))
  with T0 = conv(4 * slice(Z, s(0, (s + p + q + 1) // 4 * 4, 4)) - 5 * D2 + D4, 0.25 * at(W, s(0)), c, v(t, l, h, u, d))
  with T1 = K + L
  with T2 = M + N
  with T3 = K - L
  with T4 = M - N
  with T5 = conv(4 * D1 - 5 * D3 + slice(Z, s(5, (s + p + q + 1) // 4 * 4 + 2, 4)), at(W, s(2)), c, v(t, l, h, u, d))
  if s2 == 3
  prefer frozen(W) and c >= 16
  mode macro
  source Winograd 1980; Lavin and Gray 2016: F(4, 3) along one axis; rounding errors about four times those of a sum

conv-winograd-square: X[*b c s u]  W[o c s2 u2]  extra e f j
  conv(X, W, c, s(1, p, q), u(1, l, h))
    == slice(merge(concat(unit(at(Q, f(0)) + at(Q, f(1)) + at(Q, f(2)), j),
                          unit(at(Q, f(1)) - at(Q, f(2)) - at(Q, f(3)), j), j), u, j, u),
             s(0, s + p + q - 2), u(0, u + l + h - 2))
  with Z = pad(X, 0, s(p, q + (s + p + q) % 2), u(l, h + (u + l + h) % 2))
  with B = slice(Z, s(1, s + p + q + (s + p + q) % 2 - 2, 2))
  with C = slice(Z, s(2, s + p + q + (s + p + q) % 2, 2))
  with T = concat(unit(slice(Z, s(0, s + p + q + (s + p + q) % 2 - 2, 2)) - C, e), unit(B + C, e), unit(C - B, e),
                  unit(B - slice(Z, s(3, s + p + q + (s + p + q) % 2, 2)), e), e)
  with I = slice(T, u(1, u + l + h + (u + l + h) % 2 - 2, 2))
  with J = slice(T, u(2, u + l + h + (u + l + h) % 2, 2))
  with R = concat(unit(slice(T, u(0, u + l + h + (u + l + h) % 2 - 2, 2)) - J, f), unit(I + J, f), unit(J - I, f),
                  unit(I - slice(T, u(3, u + l + h + (u + l + h) % 2, 2)), f), f)
  with V = at(W, s(0)) + at(W, s(2))
  with G = concat(unit(at(W, s(0)), e), unit((V + at(W, s(1))) * 0.5, e), unit((V - at(W, s(1))) * 0.5, e),
                  unit(at(W, s(2)), e), e)
  with K = at(G, u(0)) + at(G, u(2))
  with H = concat(unit(at(G, u(0)), f), unit((K + at(G, u(1))) * 0.5, f), unit((K - at(G, u(1))) * 0.5, f),
                  unit(at(G, u(2)), f), f)
  with P = dot(R, H, c)
  with Q = merge(concat(unit(at(P, e(0)) + at(P, e(1)) + at(P, e(2)), j),
                        unit(at(P, e(1)) - at(P, e(2)) - at(P, e(3)), j), j), s, j, s)
  if s2 == 3, u2 == 3
  prefer frozen(W) and c >= 16
  mode macro
  source Winograd 1980; Lavin and Gray 2016: F(2 x 2, 3 x 3), one batched product of 16 planes

grouped-blocks: q in 2|4|8|16  X[*b g c *s]  W[g o c *s2]  extra h i j
  conv(X, W, c, s(t, p, l, u, d))
    == merge(conv(split(X, g, h, j(q)), diag(split(W, g, h, i(q)), i, j), c, j, s(t, p, l, u, d)), h, i, g)
  if g % q == 0
  prefer frozen(W) and q < g and 1 < c and c <= 16 and 16 <= c * q and c * q <= 64

grouped-dense: X[*b g c *s]  W[g o c *s2]  extra j
  conv(X, W, c, s(t, p, q, u, d))  ==  conv(ren(X, g, j), diag(W, g, j), c, j, s(t, p, q, u, d))
  prefer frozen(W) and 1 < g and 1 < c and g * c <= 128

grouped-apart: X[*b g c *s]  W[g o c *s2]
  conv(X, W, c, s(t, p, q, u, d))  ==  stack(r < g, conv(at(X, g(r)), at(W, g(r)), c, s(t, p, q, u, d)), g, o)
  if g >= 1
  prefer 1 < g and g <= 16 and 1 < c
  mode macro

grouped-pointwise-apart: X[*b g c *s]  W[g o c]
  conv(X, W, c, s(t))  ==  stack(r < g, dot(slice(at(X, g(r)), s(0, s, t)), at(W, g(r)), c), g, o)
  if g >= 1
  prefer 1 < g and g <= 16 and 1 < c
  mode macro

long-convolution: q in 32|64  X[*b c s]  W[o c s2]  extra i j
  conv(X, W, c, s(1, p, h))
    == slice(merge(conv(split(Z, s, s, i(q)), T, c, i, s(1)), s, j, s), s(0, s + p + h - s2 + 1))
  with Z = pad(X, 0, s(p, ((s + p + h - s2 + q) // q + (s2 + 2 * q - 2) // q - 1) * q - s - p))
  with V = pad(W, 0, s(q - 1, (s2 + 2 * q - 2) // q * q - s2))
  with T = split(conv(V, rev(diag(bcast(1, s(q)), s, j), s), s(1)), s, s, i(q))
  prefer c * o <= 4 and s2 >= 2 * q and s + p + h - s2 >= 4 * q

long-convolution-by-channel: q in 32|64  X[*b *g s]  W[*g s2]  extra i j
  conv(X, W, s(1, p, h))
    == slice(merge(conv(split(Z, s, s, i(q)), T, i, s(1)), s, j, s), s(0, s + p + h - s2 + 1))
  with Z = pad(X, 0, s(p, ((s + p + h - s2 + q) // q + (s2 + 2 * q - 2) // q - 1) * q - s - p))
  with V = pad(W, 0, s(q - 1, (s2 + 2 * q - 2) // q * q - s2))
  with T = split(conv(V, rev(diag(bcast(1, s(q)), s, j), s), s(1)), s, s, i(q))
  prefer s2 >= 2 * q and s + p + h - s2 >= 4 * q
"""
