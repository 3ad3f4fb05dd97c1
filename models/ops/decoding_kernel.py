"""The Triton kernel of `decoding_step`, apart so that only who decodes on a card imports triton."""

import triton
import triton.language as tl


@triton.jit
def _map(x, w, sigma, temperature, kept, scale, NORMALISE_EPS: tl.constexpr, MAP: tl.constexpr):
    """phi(x) of one head, `[features]`; for sines and cosines the argument of both. Zero where nothing is kept."""
    if MAP == "elu":
        phi = tl.where(kept, tl.where(x > 0, x + 1, tl.exp(x)), 0.0)
    else:
        x = x / (tl.sqrt(tl.sum(x * x, axis=0)) + NORMALISE_EPS) * (sigma / temperature)
        phi = tl.sum(w * x[None, :], axis=1)
        if MAP == "arccos":
            phi = tl.maximum(phi, 0.0) * scale
    return phi


@triton.jit
def _add_and_read(s, z, sums, normaliser, inside, kept, gate, value, share, phi_k, phi_q):
    """Update S^T and z, read before, and write them; returns S^T phi(q), `[head_dim]`, and z . phi(q)."""
    s = s * gate + value[:, None] * phi_k[None, :]
    z = z * gate + share * phi_k
    tl.store(sums, s, mask=inside)
    tl.store(normaliser, z, mask=kept)
    return tl.sum(s * phi_q[None, :], axis=1), tl.sum(z * phi_q, axis=0)


@triton.jit
def step_kernel(
    q_in, k_in, v_in, w_in, sigma_in, gate_in, sums, weights, out,
    q_batch, q_head, k_batch, k_head, v_batch, v_head, gate_batch, gate_head,
    temperature, eps,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_FEATURES: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
    MAP: tl.constexpr, GATED: tl.constexpr, NORMALISE_EPS: tl.constexpr,
):  # fmt: skip
    """One sequence and head: features, update and reading, its state read and written once.

    NUM_FEATURES: D; of `gaussian` a state is twice as wide, its sines before its cosines.
    """
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // HEADS, program % HEADS
    rows, columns = tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_FEATURES)
    in_head, kept = rows < HEAD_DIM, columns < NUM_FEATURES
    inside = in_head[:, None] & kept[None, :]
    # The state, most of what is read, is on its way while features are made.
    WIDTH: tl.constexpr = 2 * NUM_FEATURES if MAP == "gaussian" else NUM_FEATURES
    state = sums + program * (HEAD_DIM + 1) * WIDTH
    normaliser = state + HEAD_DIM * WIDTH + columns
    sums = state + rows[:, None] * WIDTH + columns[None, :]
    s, z = tl.load(sums, mask=inside, other=0.0), tl.load(normaliser, mask=kept, other=0.0)
    if MAP == "gaussian":
        s_cos = tl.load(sums + NUM_FEATURES, mask=inside, other=0.0)
        z_cos = tl.load(normaliser + NUM_FEATURES, mask=kept, other=0.0)

    q = tl.load(q_in + batch * q_batch + head * q_head + rows, mask=in_head, other=0.0).to(tl.float32)
    k = tl.load(k_in + batch * k_batch + head * k_head + rows, mask=in_head, other=0.0).to(tl.float32)
    v = tl.load(v_in + batch * v_batch + head * v_head + rows, mask=in_head, other=0.0).to(tl.float32)
    w, sigma = 0.0, 1.0
    if MAP != "elu":
        entries = (head * NUM_FEATURES + columns[:, None]) * HEAD_DIM + rows[None, :]
        w = tl.load(w_in + entries, mask=kept[:, None] & in_head[None, :], other=0.0).to(tl.float32)
        sigma = tl.load(sigma_in + head * HEAD_DIM + rows, mask=in_head, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(NUM_FEATURES * 1.0)
    phi_q = _map(q, w, sigma, temperature, kept, scale, NORMALISE_EPS, MAP)
    phi_k = _map(k, w, sigma, temperature, kept, scale, NORMALISE_EPS, MAP)

    gate, share = 1.0, 1.0  # of the state that is kept, and of the token
    if GATED:
        gate = tl.sigmoid(tl.load(gate_in + batch * gate_batch + head * gate_head).to(tl.float32))
        share = 1.0 - gate
    weight = tl.load(weights + program) * gate + share
    tl.store(weights + program, weight)
    value = v * share
    if MAP == "gaussian":
        sin_k, sin_q = tl.where(kept, tl.sin(phi_k) * scale, 0.0), tl.where(kept, tl.sin(phi_q) * scale, 0.0)
        cos_k, cos_q = tl.where(kept, tl.cos(phi_k) * scale, 0.0), tl.where(kept, tl.cos(phi_q) * scale, 0.0)
        y, total = _add_and_read(s, z, sums, normaliser, inside, kept, gate, value, share, sin_k, sin_q)
        sums += NUM_FEATURES
        normaliser += NUM_FEATURES
        more, rest = _add_and_read(s_cos, z_cos, sums, normaliser, inside, kept, gate, value, share, cos_k, cos_q)
        y += more
        total += rest
    else:
        y, total = _add_and_read(s, z, sums, normaliser, inside, kept, gate, value, share, phi_k, phi_q)
    y = y / tl.maximum(total, eps * tl.minimum(weight, 1.0))
    tl.store(out + program * HEAD_DIM + rows, y.to(out.dtype.element_ty), mask=in_head)
