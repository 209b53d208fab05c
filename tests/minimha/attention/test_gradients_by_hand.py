"""The formulas of docs/gradients.md, as they stand there, against the package's gradients."""

import numpy as np
import pytest

import minimha as mh

B, H, T, S, D, DV = 2, 3, 5, 7, 4, 6
LINEAR, DELTA = mh.linear_attention, mh.gated_delta_rule


def delta_inputs(rng, length, d=3, dv=2):
    """Keys that are not of length 1, a decay, a state, and the gradients from outside."""
    query, key = rng.standard_normal((2, length, d))
    value, dout = rng.standard_normal((2, length, dv))
    state, dreturned = rng.standard_normal((2, d, dv))
    beta, alpha = rng.random(length), rng.uniform(0.5, 1, length)
    return [query, key, value, beta, np.log(alpha), state], [dout, dreturned]


def by_recurrence(inputs, outside, *, linear=False):
    """(out, last), and the gradients position by position."""
    query, key, value, beta, log_decay, first = inputs
    dout, dreturned = outside
    states, kept, errors, outs = [first], [], [], []
    for q, k, v, b, g in zip(query, key, value, beta, log_decay, strict=True):
        kept.append(np.exp(g) * states[-1])
        errors.append(v - kept[-1].T @ k)
        u = v if linear else b * errors[-1]
        states.append(kept[-1] + np.outer(k, u))
        outs.append(states[-1].T @ q)

    dq, dk, dv = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    dbeta, dlog = np.zeros_like(beta), np.zeros_like(log_decay)
    dstate = dreturned
    for t in reversed(range(len(query))):
        dstate = np.outer(query[t], dout[t]) + dstate
        dq[t] = states[t + 1] @ dout[t]
        du = dstate.T @ key[t]
        if linear:
            dv[t] = du
            dk[t] = dstate @ value[t]
            dkept = dstate
        else:
            dbeta[t] = du @ errors[t]
            dv[t] = beta[t] * du
            dk[t] = dstate @ (beta[t] * errors[t]) - kept[t] @ dv[t]
            dkept = dstate - np.outer(key[t], dv[t])
        dlog[t] = (dkept * kept[t]).sum()
        dstate = np.exp(log_decay[t]) * dkept
    gradients = [dq, dk, dv, dbeta, dlog, dstate]
    if linear:
        del gradients[3]
    return (np.array(outs), states[-1]), gradients


@pytest.mark.parametrize("form", ["recurrent", "parallel", "chunked"])
def test_the_recurrence_position_by_position(form, rng):
    inputs, outside = delta_inputs(rng, 6)
    values, pull = DELTA.with_pullback(*inputs, form=form, chunk=4)
    expected = by_recurrence(inputs, outside)
    assert_all_close([*values, *pull(*outside)], [*expected[0], *expected[1]])

    without_beta = [x for n, x in enumerate(inputs) if n != 3]
    values, pull = LINEAR.with_pullback(*without_beta, form=form, chunk=4)
    expected = by_recurrence(inputs, outside, linear=True)
    assert_all_close([*values, *pull(*outside)], [*expected[0], *expected[1]])


def test_the_last_state_has_a_gradient_of_its_own_and_so_has_the_first(rng):
    """The gradient of a state had two parts on the page: with the returned state unused, or left
    out of the formulas, the gradients of keys, values, β, decay and the first state are others."""
    inputs, (dout, dreturned) = delta_inputs(rng, 6)
    _, pull = DELTA.with_pullback(*inputs)
    with_it, without = pull(dout, dreturned), pull(dout, 0 * dreturned)
    names = ["query", "key", "value", "beta", "decay", "state"]
    for name, a, b in zip(names, with_it, without, strict=True):
        assert np.allclose(a, b) == (name == "query"), name
    step = 1e-6 * rng.standard_normal(inputs[-1].shape)
    up, down = (DELTA(*inputs[:-1], inputs[-1] + sign * step) for sign in (1, -1))
    change = sum(
        (d * (a - b)).sum() for d, a, b in zip((dout, dreturned), up, down, strict=True)
    )  # fmt: skip
    np.testing.assert_allclose((with_it[-1] * 2 * step).sum(), change, rtol=1e-7)


def test_two_tokens_by_hand():
    key = np.array([[1.0, 0.0], [0.6, 0.8]])
    inputs = [key[[0, 0]], key, np.array([[8.0], [4.0]]), np.ones(2), np.zeros(2), np.zeros((2, 1))]
    for form in ("recurrent", "chunked"):
        (out, last), pull = DELTA.with_pullback(*inputs, form=form)
        np.testing.assert_allclose(out, [[8.0], [7.52]])
        np.testing.assert_allclose(last, [[7.52], [-0.64]])
        dq, dk, dv, dbeta, _, dfirst = pull(np.array([[0.0], [1.0]]), np.zeros((2, 1)))
        np.testing.assert_allclose(dq, [[0, 0], [7.52, -0.64]], atol=1e-12)
        np.testing.assert_allclose(dk, [[5.12, -3.84], [-5.6, 0]], atol=1e-12)
        np.testing.assert_allclose(dv, [[0.64], [0.6]])
        np.testing.assert_allclose(dbeta, [5.12, -0.48])
        np.testing.assert_allclose(dfirst, [[0], [-0.48]], atol=1e-12)


def test_a_chunk_of_the_delta_rule(rng):
    inputs, (dout, dlast) = delta_inputs(rng, 6)
    query, key, value, beta, log_decay, state = inputs
    n = len(query)
    since = np.exp(np.cumsum(log_decay))  # γ_t0
    decay = np.tril(since[:, None] / since)  # γ_tj
    coupling = np.tril(decay * (key @ key.T), -1)
    a = coupling * beta
    error = np.linalg.solve(np.eye(n) + a, value - since[:, None] * (key @ state))
    u = beta[:, None] * error
    out = since[:, None] * (query @ state) + (decay * (query @ key.T)) @ u
    last = since[-1] * state + (decay[-1][:, None] * key).T @ u

    du = (decay * (query @ key.T)).T @ dout + decay[-1][:, None] * (key @ dlast)
    dw = np.linalg.solve((np.eye(n) + a).T, beta[:, None] * du)
    da = -dw @ error.T
    dbeta = (du * error).sum(axis=1) + (da * coupling).sum(axis=0)
    dstate = since[-1] * dlast + (since[:, None] * query).T @ dout - (since[:, None] * key).T @ dw
    dquery, dkey = np.zeros_like(query), np.zeros_like(key)
    for t in range(n):
        dquery[t] = since[t] * state @ dout[t]
        dquery[t] += sum(decay[t, j] * (dout[t] @ u[j]) * key[j] for j in range(t + 1))
    for j in range(n):
        dkey[j] = -since[j] * state @ dw[j] + decay[-1, j] * dlast @ u[j]
        dkey[j] += sum(decay[t, j] * (dout[t] @ u[j]) * query[t] for t in range(j, n))
        dkey[j] += sum(da[j, i] * decay[j, i] * beta[i] * key[i] for i in range(j))
        dkey[j] += sum(da[t, j] * decay[t, j] * beta[j] * key[t] for t in range(j + 1, n))

    values, pull = DELTA.with_pullback(*inputs)
    *found, dlog, dfirst = pull(dout, dlast)
    assert_all_close([*values, *found, dfirst], [out, last, dquery, dkey, dw, dbeta, dstate])

    # d log α_m is the sum of γ_tj dγ_tj over j < m ≤ t; j = −1 here is the state before the chunk
    dgamma = np.tril(da * (key @ key.T) * beta, -1)
    dgamma += np.tril((query @ key.T) * (dout @ u.T))
    dgamma[-1] += ((key @ dlast) * u).sum(axis=1)
    of_since = ((query @ state) * dout).sum(axis=1) - ((key @ state) * dw).sum(axis=1)
    of_since[-1] += (dlast * state).sum()
    terms = np.concatenate([(since * of_since)[:, None], decay * dgamma], axis=1)  # (t, j + 1)
    expected = [terms[m:, : m + 1].sum() for m in range(n)]
    np.testing.assert_allclose(dlog, expected, rtol=1e-10)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0, 1.9, 2.0])
def test_a_state_does_not_grow_without_values_if_beta_times_the_squared_length_is_at_most_2(
    rate, rng
):
    key = 3 * rng.standard_normal((200, D))
    beta = rate / (key**2).sum(axis=1)
    first = rng.standard_normal((D, DV))
    value = np.zeros((200, DV))
    sizes = [np.linalg.norm(first, axis=0)]
    for t in range(200):
        some = slice(t, t + 1)
        _, first = DELTA(key[some], key[some], value[some], beta[some], None, first)
        sizes.append(np.linalg.norm(first, axis=0))
    assert np.all(np.diff(sizes, axis=0) <= 1e-12)


@pytest.mark.parametrize(("rate", "factor"), [(0.5, 0.5), (1.0, 0.0), (2.0, -1.0), (2.1, -1.1)])
def test_a_write_multiplies_the_error_of_its_key_by_1_minus_beta_times_the_squared_length(
    rate, factor, rng
):
    key, value = rng.standard_normal((1, D)), rng.standard_normal((1, DV))
    beta = np.array([rate / (key**2).sum()])
    first = rng.standard_normal((D, DV))
    _, last = DELTA(key, key, value, beta, None, first)
    np.testing.assert_allclose(key @ last - value, factor * (key @ first - value), atol=1e-12)


def attention_inputs(rng):
    shapes = (B, H, T, D), (B, H, S, D), (B, H, S, DV), (H,)
    query, key, value, sink = (rng.standard_normal(shape) for shape in shapes)
    return query, key, value, sink, rng.standard_normal((B, H, T, DV)), rng.standard_normal((T, S))


def gradients(function, dout, *arrays):
    leaves = [mh.Tensor(x, requires_grad=True) for x in arrays]
    (function(*leaves) * dout).sum().backward()
    return [x.grad for x in leaves]


def test_with_a_softcap_the_gradient_of_the_scores_is_the_one_behind_the_cap(rng):
    query, key, value, _, dout, bias = attention_inputs(rng)
    scale, cap = 0.9, 1.5
    raw = query @ key.mT
    u = scale * raw / cap
    scores = cap * np.tanh(u) + bias
    weights = mh.functional.softmax(scores)
    dweights = dout @ value.mT
    behind = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
    before = behind * (1 - np.tanh(u) ** 2)
    dcap = (behind * (np.tanh(u) - u * (1 - np.tanh(u) ** 2))).sum()

    def attend(q, k, s, c, b):
        return mh.scaled_dot_product_attention(q, k, value, bias=b, scale=s, softcap=c)

    arrays = query, key, np.array(scale), np.array(cap), bias
    found = gradients(attend, dout, *arrays)
    expected = [scale * before @ key, scale * before.mT @ query, (before * raw).sum(), dcap]
    assert_all_close(found, [*expected, behind.sum(axis=(0, 1))])
    assert not np.allclose(found[0], scale * behind @ key)  # dQ = s dS K without a cap
    assert not np.allclose(found[2], (behind * raw).sum())


def test_the_gradient_of_a_sink_is_summed_over_its_queries(rng):
    query, key, value, sink, dout, _ = attention_inputs(rng)
    dlse = rng.standard_normal((B, H, T))

    def attend(a):
        return mh.scaled_dot_product_attention(query, key, value, sink=a, return_lse=True)

    exponentials = np.exp(query @ key.mT / D**0.5)
    total = np.exp(sink)[:, None, None] + exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / total
    of_sink = 1 - weights.sum(axis=-1)  # (B, H, T)
    delta = ((dout @ value.mT) * weights).sum(axis=-1) - dlse
    each = -of_sink * delta
    leaf = mh.Tensor(sink, requires_grad=True)
    out, lse = attend(leaf)
    ((out * dout).sum() + (lse * dlse).sum()).backward()
    np.testing.assert_allclose(leaf.grad, each.sum(axis=(0, 2)))
    assert leaf.grad.shape != each.shape


ZERO_OF_BK = {
    "plain": {},
    "causal": {"mask": mh.masks.causal()},
    "bias": {"bias": np.random.default_rng(3).standard_normal((T, T))},
    "scale": {"scale": 0.3},
    "dropout": {"keep": np.random.default_rng(4).random((B, H, T, T)) < 0.7, "dropout": 0.3},
}
NOT_ZERO = {"softcap": {"softcap": 1.0}, "sink": {"sink": np.zeros(H)}, "lse": {"return_lse": True}}


@pytest.mark.parametrize("name", [*ZERO_OF_BK, *NOT_ZERO, "rope", "norm of K", "grouped heads"])
def test_when_the_gradient_of_the_bias_of_the_keys_is_zero(name, rng):
    options = {**ZERO_OF_BK, **NOT_ZERO}.get(name, {})
    heads = 1 if name == "grouped heads" else H
    query = rng.standard_normal((B, H, T, D))
    key = rng.standard_normal((B, heads, T, D))
    value = rng.standard_normal((B, heads, T, DV))
    dout = rng.standard_normal((B, H, T, DV))
    bias = mh.Tensor(rng.standard_normal((heads, 1, D)), requires_grad=True)
    biased = mh.Tensor(key) + bias
    if name == "rope":
        rope = mh.positions.Rope()
        query, biased = rope(query), rope(biased)
    if name == "norm of K":
        biased = mh.functional.rms_norm(biased, np.ones(D))
    out = mh.scaled_dot_product_attention(query, biased, value, **options)
    if name == "lse":
        out, lse = out
        lse.sum().backward()
    else:
        (out * dout).sum().backward()
    zero = abs(bias.grad).max() < 1e-13
    assert zero == (name in ZERO_OF_BK or name == "grouped heads")


def test_the_gradients_of_two_factors_do_not_determine_that_of_their_product(rng):
    width = 5
    w_q, w_k = rng.standard_normal((2, width, D))
    a, b = (np.linalg.svd(w)[0][:, -1] for w in (w_q, w_k))  # orthogonal to all columns
    more = np.outer(a, b)
    assert abs(more).max() > 0.1
    product = rng.standard_normal((width, width))
    for changed, same in (
        ((product + more) @ w_k, product @ w_k),
        ((product + more).T @ w_q, product.T @ w_q),
    ):
        np.testing.assert_allclose(changed, same, atol=1e-12)


def assert_all_close(found, expected):
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * abs(b).max(), err_msg=str(n))
