"""A training run that several ranks share equals the run of one process."""

import copy

import numpy as np
import pytest
from model_settings import NAMES, OTHER, SMALL

import minimha as mh
from minimha.parallel import WAYS, CommunicationError, run
from minimha.training import Losses, ParallelTraining, Training, watch

TOKENS = np.random.default_rng(0).integers(0, 7, 300)
SETTINGS = {"batch": 5, "lr": 1e-2}
every_way = pytest.mark.parametrize("way", WAYS)


def model(**settings):
    settings = {"num_heads": 4, "num_layers": 2, "tie": True, "dtype": "float64", **settings}
    return mh.GPT(7, context=11, d_model=16, rng=0, **settings)


def shared(comm, way, steps=9, made=None, **settings):
    """A run that the ranks share."""
    made = made or model()
    return ParallelTraining(made, TOKENS, comm=comm, way=way, steps=steps, **SETTINGS, **settings)


def losses_and_state(way, ranks, steps, **settings):
    def work(comm):
        made = model(**settings)
        training = shared(comm, way, steps, made)
        losses = list(training)
        if comm.rank == 0:
            made(TOKENS[None, :11])  # after its steps, a rank can use the model alone
        return losses, training.state()

    return run(work, ranks)


def assert_equal_to_one_process(way, ranks, steps, tolerance, **settings):
    expected = Training(model(**settings), TOKENS, steps=steps, **SETTINGS)
    losses = list(expected)
    for own, state in losses_and_state(way, ranks, steps, **settings):
        np.testing.assert_allclose(own, losses, rtol=0, atol=tolerance)
        assert state.keys() == expected.state().keys()
        for name, x in expected.state().items():
            np.testing.assert_allclose(state[name], x, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("ranks", "steps", "tolerance"),
    [(3, 2, 1e-13), *[pytest.param(n, 50, 1e-12, marks=pytest.mark.thorough) for n in (1, 2, 3, 4)]],
)  # fmt: skip
@every_way
def test_losses_and_weights_equal_those_of_one_process(way, ranks, steps, tolerance):
    assert_equal_to_one_process(way, ranks, steps, tolerance)  # 5 sequences, 4 heads, 11 positions


@every_way
def test_every_setting_of_a_model_reaches_all_ranks(way):
    """Also one that a way does not know: it must not train another model in silence."""
    drawn = "rng", "dtype", "dropout"  # each rank draws its own dropout
    settings = {name: OTHER[name] for name in NAMES if name not in (*SMALL, *drawn)}
    settings["num_kv_heads"] = 2  # one for each rank
    try:
        assert_equal_to_one_process(way, 2, 2, 1e-12, **settings)
    except AssertionError as error:
        error.add_note(
            f"ranks of the way {way!r} train another model than one process: one of the settings "
            f"{[*settings]} does not reach their attention or their blocks, see minimha/parallel"
        )
        raise


@every_way
def test_b_k_alone_differs_from_one_process_because_adam_steps_on_its_rounding_errors(way):
    """Its true gradient is 0: it adds the same number to all scores of a query."""

    def weights(training):
        losses = list(training)
        return losses, {name: p.data for name, p in training.model.named_parameters()}

    steps, float32 = 20, {"dtype": "float32"}
    alone = Training(model(**float32), TOKENS, steps=steps, **SETTINGS)
    losses, expected = weights(alone)
    shared_losses, found = run(
        lambda comm: weights(shared(comm, way, steps, model(**float32), every=steps)), 2
    )[0]
    off = {name: abs(found[name] - x).max() for name, x in expected.items()}
    b_k = max(x for name, x in off.items() if name.endswith("b_k"))
    others = max(x for name, x in off.items() if not name.endswith("b_k"))
    assert b_k > 1e-5 > 2 * others
    np.testing.assert_allclose(shared_losses, losses, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "effect"),
    [({}, False), ({"rope": mh.positions.Rope()}, True), ({"qk_norm": True}, True)],
)
def test_b_k_has_no_effect_unless_there_are_rotary_positions_or_qk_norm(settings, effect):
    made = model(**settings)
    before = made(TOKENS[None, :11]).data
    for name, p in made.named_parameters():
        if name.endswith("b_k"):
            p.data = np.linspace(-1, 1, p.data.size)
    assert (abs(made(TOKENS[None, :11]).data - before).max() > 1e-6) == effect


def test_b_k_has_no_effect_in_columns_that_rotary_positions_leave_as_they_are():
    made = model(rope=mh.positions.Rope(width=2))
    before = made(TOKENS[None, :11]).data
    for columns, effect in ((slice(2, None), False), (slice(2), True)):
        for name, p in made.named_parameters():
            if name.endswith("b_k"):
                p.data = p.data.copy()
                p.data.reshape(4, 4)[:, columns] = 1  # (H, D)
        assert (abs(made(TOKENS[None, :11]).data - before).max() > 1e-6) == effect


@pytest.mark.thorough
def test_a_long_run_at_a_high_learning_rate_amplifies_rounding():
    steps = 300
    expected = list(Training(model(), TOKENS, steps=steps, **SETTINGS))
    found = run(lambda comm: list(shared(comm, "data", steps)), 2)[0]
    off = abs(np.array(found) - expected)
    assert off[:50].max() < 1e-12
    assert off.max() > 1e-9


@every_way
def test_ranks_train_in_every_array_library(way, library):
    def work(comm):
        return next(shared(comm, way, made=model(num_layers=1).to(library)))

    expected = next(Training(model(num_layers=1), TOKENS, steps=9, **SETTINGS))
    np.testing.assert_allclose(run(work, 2), expected, rtol=0, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3])
@every_way
def test_a_llama_with_grouped_heads_and_rotary_positions(way, ranks):
    llama = {"norm": "rms", "activation": "swiglu", "bias": False, "tie": False}
    rope = mh.positions.Rope()
    assert_equal_to_one_process(
        way, ranks, 20, 1e-12, num_heads=6, num_kv_heads=3, head_dim=4, rope=rope, **llama
    )


@every_way
def test_a_run_resumes_on_another_number_of_ranks_and_in_one_process(way, tmp_path):
    steps, path = 4, tmp_path / "checkpoint.safetensors"
    expected = list(Training(model(), TOKENS, steps=steps, **SETTINGS))

    def first_half(comm):
        training = shared(comm, way, steps, every=2)
        losses = [next(training), next(training)]
        training.save(path)
        return losses

    def second_half(comm):
        training = shared(comm, way, steps)
        training.resume(path)
        return list(training)

    losses = run(first_half, 2)[0]
    np.testing.assert_allclose(losses + run(second_half, 3)[0], expected, rtol=0, atol=1e-12)
    alone = Training(model(), TOKENS, steps=steps, **SETTINGS)
    alone.resume(path)
    np.testing.assert_allclose(losses + list(alone), expected, rtol=0, atol=1e-12)


def test_a_run_with_dropout_draws_the_same_masks_again():
    one, two = (losses_and_state("data", 2, 2, dropout=0.5)[0][0] for _ in range(2))
    assert one == two
    assert one != losses_and_state("data", 2, 2)[0][0]


def test_each_rank_draws_its_own_dropout():
    class Recorder(mh.GPT):
        def __call__(self, *args, rng, **settings):
            self.drawn = copy.deepcopy(rng).random()
            return super().__call__(*args, rng=rng, **settings)

    def work(comm):
        made = Recorder(7, context=11, d_model=16, num_heads=4, num_layers=1, dropout=0.5)
        next(shared(comm, "data", made=made))
        return made.drawn

    assert len(set(run(work, 3))) == 3


@pytest.mark.parametrize(
    ("ranks", "way", "settings", "message"),
    [
        (6, "data", {}, "6 ranks need at least 6 sequences, but there are 5"),
        (5, "heads", {}, "5 ranks need at least 5 heads"),
        (2, "heads", {"dropout": 0.1}, "dropout works only with the way 'data'"),
        (5, "ulysses", {}, "5 ranks need at least 5 heads"),
        (12, "ulysses", {"num_heads": 16}, "12 ranks need at least 12 positions"),
        (2, "sideways", {}, "way = 'sideways': there are data, heads, ulysses, ring"),
    ],
)
def test_what_cannot_be_shared_is_refused_at_once(ranks, way, settings, message):
    def work(comm):
        shared(comm, way, made=model(**settings))

    with pytest.raises(ValueError, match=message):
        run(work, ranks)


def test_ranks_at_different_steps_are_found():
    def work(comm):
        training = shared(comm, "data")
        training.step = comm.rank
        return next(training)

    with pytest.raises(CommunicationError, match=r"step [01], call.*step [01], call"):
        run(work, 2)


def test_ranks_that_begin_with_different_weights_are_found():
    def work(comm):
        made = mh.GPT(7, context=11, d_model=16, num_heads=4, num_layers=2, rng=comm.rank)
        shared(comm, "data", made=made)

    with pytest.raises(CommunicationError, match=r"ranks disagree.*a run with weights"):
        run(work, 2)


def test_a_finished_run_can_be_resumed_and_saved_again(tmp_path):
    def work(comm, path):
        training = shared(comm, "heads", 1)
        if path.exists():
            training.resume(path)
        list(training)
        training.save(path)

    path = tmp_path / "checkpoint.safetensors"
    run(work, 2, path)
    before = path.read_bytes()
    run(work, 3, path)
    assert path.read_bytes() == before


def test_a_run_is_watched_where_its_model_is_collected():
    def validation(training, every=None):
        losses = Losses()
        list(watch(training, TOKENS[:40], every=every, losses=losses))
        return losses.validation

    def work(comm):
        training = shared(comm, "heads", 5, every=2)
        return validation(training) if comm.rank == 0 else list(training)

    expected = validation(Training(model(), TOKENS, steps=5, **SETTINGS), 2)
    assert run(work, 2)[0] == pytest.approx(expected, abs=1e-12)


def test_the_state_can_be_read_where_it_was_collected():
    def work(comm):
        training = shared(comm, "data", 3, every=2)
        next(training)
        with pytest.raises(RuntimeError, match="collected every 2 steps"):
            training.state()
        next(training)
        return int(training.state()["step"])

    assert run(work, 2) == [2, 2]


def test_adamw_turns_the_rounding_error_of_a_gradient_near_0_into_a_visible_step():
    def stepped(terms):
        w = mh.Tensor(np.ones(1, "float32"), requires_grad=True)
        optimiser = mh.nn.AdamW([w], lr=1e-3, weight_decay=0.0)
        w.grad = sum(np.float32([x]) for x in terms)
        optimiser.step()
        return w.data[0]

    some_order, another_order = (0.1, 0.2, -0.3), (-0.3, 0.2, 0.1)
    assert abs(stepped(some_order) - stepped(another_order)) > 1e-4
    assert abs(stepped((0.1, 0.2)) - stepped((0.2, 0.1))) < 1e-7
