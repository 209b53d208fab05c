"""The ways to share the work of a model: each equals one process, forward and backward."""

import numpy as np
import pytest

import minimha as mh
from minimha.nn import SGD, AdamW, clip_gradients, decay_groups
from minimha.parallel import (
    Buckets,
    Communicator,
    Ulysses,
    data,
    run,
    share_heads,
    ulysses_attention,
)

RNG = np.random.default_rng(7)
B, H, G, T, D, DV, M = 2, 6, 3, 7, 4, 5, 24
ranks = pytest.mark.parametrize("ranks", [1, 2, 3])


def leaf(x):
    return mh.Tensor(x, requires_grad=True)


@ranks
@pytest.mark.parametrize("settings", [{}, {"softcap": 1.5, "sink": True, "qk_norm": True}])
def test_the_heads_of_a_layer_add_up_across_ranks(ranks, settings):
    def layer():
        made = mh.MultiHeadAttention(M, H, num_kv_heads=G, rng=1, dtype="float64", **settings)
        made.b_o.data = np.linspace(-1, 1, M)
        return made

    x, dy = RNG.standard_normal((2, B, T, M))
    whole, x_whole = layer(), leaf(x)
    y = whole(x_whole, mask=mh.masks.causal())
    y.backward(dy)

    def work(comm):
        own, x_own = layer(), leaf(x)
        share_heads(comm, own)
        out = own(x_own, mask=mh.masks.causal())
        out.backward(dy / comm.size)  # all ranks have the same loss: each one's share
        return out.data, x_own.grad, own

    outs, dxs, layers = zip(*run(work, ranks), strict=True)
    for out in outs:
        np.testing.assert_allclose(out, y.data, rtol=0, atol=1e-13)
    np.testing.assert_allclose(sum(dxs), x_whole.grad, rtol=0, atol=1e-13)
    for name, p in whole.named_parameters():
        held = [dict(own.named_parameters())[name].grad for own in layers]
        axis = {"w": 1, "b": 0, "s": 0, "n": None}[name[0]]
        axis = {"w_o": 0, "b_o": None}.get(name, axis)
        gradient = sum(held) if axis is None else np.concatenate(held, axis)
        np.testing.assert_allclose(gradient, p.grad, rtol=0, atol=1e-13, err_msg=name)


def test_each_rank_holds_the_weights_of_its_heads_only():
    def work(comm):
        layer = mh.MultiHeadAttention(M, H, num_kv_heads=G, rng=1)
        share_heads(comm, layer)
        return layer.num_heads, layer.w_q.shape, layer.w_k.shape, layer.w_o.shape

    assert run(work, 2) == [
        (4, (M, 16), (M, 8), (16, M)),  # 2 of 3 key heads, with the query heads that share them
        (2, (M, 8), (M, 4), (8, M)),
    ]


def parameters():
    rng = np.random.default_rng(3)
    return [leaf(rng.standard_normal(shape)) for shape in ((3, 4), (5,), (2, 3), (1,))]


@ranks
@pytest.mark.parametrize("bucket", [1, 80, 10**6])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_a_sharded_optimiser_makes_the_steps_of_a_whole_one(ranks, bucket, kind, monkeypatch):
    monkeypatch.setattr(data, "BUCKET", bucket)
    gradients = [[RNG.standard_normal(p.shape) for p in parameters()] for _ in range(3)]
    settings = {"lr": 0.1} | ({"momentum": 0.9} if kind is SGD else {})

    def groups(made):
        return [{"params": made[:2], "weight_decay": 0.3}, {"params": made[2:]}]

    whole = parameters()
    expected = kind(groups(whole), **settings)
    norms = []
    for step in gradients:
        for p, g in zip(whole, step, strict=True):
            p.grad = g
        norms.append(clip_gradients(whole, 1.0))
        expected.step()

    def work(comm):
        own = parameters()
        buckets = Buckets(comm, groups(own))
        optimiser = kind(buckets.groups, **settings)
        for step, norm in zip(gradients, norms, strict=True):
            for p, g in zip(own, step, strict=True):
                p.grad = g * (comm.rank + 1) / sum(range(comm.size + 1))  # these add up to g
            buckets.reduce()
            assert clip_gradients(optimiser.parameters, 1.0, comm) == pytest.approx(norm, 1e-12)
            optimiser.step()
            buckets.gather()
        state = buckets.whole_state(optimiser.state(), None)
        again = kind(Buckets(comm, groups(own)).groups, **settings)
        again.set_state(buckets.part_of_state(state, None))
        assert all(np.array_equal(x, optimiser.state()[name]) for name, x in again.state().items())
        return [p.data for p in own], state, sum(p.data.size for p in optimiser.parameters)

    results = run(work, ranks)
    entries = sum(p.data.size for p in whole)
    assert sum(held for _, _, held in results) == entries  # no entry is updated on two ranks
    for own, state, _ in results:
        for x, p in zip(own, whole, strict=True):
            np.testing.assert_allclose(x, p.data, rtol=1e-13, atol=1e-14)
        assert state.keys() == expected.state().keys()
        for name, x in expected.state().items():
            np.testing.assert_allclose(state[name], x, rtol=1e-13, atol=1e-14)


def test_parameters_of_different_groups_are_in_different_buckets():
    model = mh.GPT(5, context=4, d_model=8, num_heads=2, num_layers=1)

    def work(comm):
        return [len(group["params"]) for group in Buckets(comm, decay_groups(model, 0.1)).groups]

    assert run(work, 2) == [[1, 1]] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda comm, q: ulysses_attention(comm, q[:, :1], q[:, :1], q[:, :1]), "2 ranks need at least 2 heads of keys and values, but there are 1: use fewer ranks"),
        (lambda comm, q: ulysses_attention(comm, *[q[:, :, : 1 + comm.rank]] * 3), r"rank [01] holds [12] of 3 positions, but its part is [12]"),
        (lambda comm, q: share_heads(comm, mh.MultiHeadAttention(8, 1)), "2 ranks need at least 2 heads"),
        (lambda comm, q: share_heads(comm, mh.MultiHeadAttention(8, 2, form="fused")), "stacked form"),
        (lambda comm, q: share_heads(comm, mh.MultiHeadAttention(8, 2, alibi=True)), "without alibi"),
        (
            lambda comm, q: share_heads(
                comm, mh.MultiHeadAttention(8, 2, qk_norm=mh.QKNorm(all_heads=True))
            ),
            "without a QKNorm over all heads",
        ),
    ],
)  # fmt: skip
def test_work_that_cannot_be_shared_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        run(lambda comm: call(comm, RNG.standard_normal((B, 2, T, D))), 2)


@pytest.mark.parametrize(
    ("settings", "call", "name"),
    [
        ({"sink": True}, {}, "sink"),
        ({"alibi": True}, {}, "bias"),
        ({"dropout": 0.5}, {"rng": np.random.default_rng(0)}, "dropout"),
        ({}, {"return_weights": True}, "return_weights"),
    ],
)
def test_a_layer_whose_positions_are_divided_refuses_what_needs_all_of_them(settings, call, name):
    layer = mh.MultiHeadAttention(8, 2, **settings)
    way = Ulysses(Communicator(0, 1), layer)
    with way.sharing(), pytest.raises(ValueError, match=f"do not support {name}"):
        layer(np.ones((B, T, 8), "float32"), **call)
