"""Wrong gradients are located, and their causes are named: the whole catalogue."""

import functools
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from catalogue import CATALOGUE, HEALTHY
from unseen import UNSEEN

import minimha as mh
from minimha.course import CHAPTERS
from minimha.diagnosis.causes import CHAPTERS as CAUSES
from minimha.diagnosis.causes import UNEXPLAINED

WRONG = [bug for bug in CATALOGUE if not bug.hygiene]
RESTLESS = [bug for bug in CATALOGUE if bug.hygiene]
NAMED = 0.95  # the share of causes that must be named correctly


def each(bugs, step=16):
    """A test of each bug; all but one in `step` run only with --thorough."""
    marks = [() if n % step == 0 else pytest.mark.thorough for n in range(len(bugs))]
    return pytest.mark.parametrize(
        "bug", [pytest.param(b, id=b.name, marks=mark) for b, mark in zip(bugs, marks, strict=True)]
    )


@each(HEALTHY, 4)
def test_a_correct_gradient_passes(bug):
    f, inputs = bug.make(np.random.default_rng(3))
    mh.gradcheck(f, *inputs, rng=3)


@functools.cache
def diagnosis(bug):
    """The diagnosis of a bug: nodes and cause."""
    f, inputs = bug.make(np.random.default_rng(0))
    with pytest.raises(mh.GradcheckError) as failed:
        mh.gradcheck(f, *inputs)
    return failed.value.diagnosis


@each(WRONG)
def test_a_wrong_step_is_located(bug):
    assert set(diagnosis(bug).nodes) == set(bug.node)


@pytest.mark.parametrize("bug", UNSEEN, ids=lambda bug: bug.name)
def test_a_mistake_without_a_recogniser_is_located_and_never_misnamed(bug, tables):
    found = diagnosis(bug)
    row = [bug.name, ", ".join(found.nodes), found.cause]
    tables["ten mistakes without a recogniser of their own: step and cause"].append(row)
    assert (found.nodes, found.cause) in {(bug.node, UNEXPLAINED), (bug.node, bug.cause)}


def test_as_many_mistakes_as_the_page_on_gradient_checks_counts():
    assert (len(CATALOGUE), len(WRONG)) == (120, 115)
    named = [bug for bug in UNSEEN if diagnosis(bug).cause != UNEXPLAINED]
    assert (len(UNSEEN), len(named)) == (10, 3)


@each(RESTLESS, 1)
def test_a_function_that_changes_between_calls_is_reported(bug):
    f, inputs = bug.make(np.random.default_rng(0))
    with pytest.raises(mh.GradcheckError, match=bug.match):
        mh.gradcheck(f, *inputs)


def confusion(pairs):
    """The confusion matrix of (true, named), with a row for each true cause."""
    counts = Counter(pairs)
    true, named = ({pair[n] for pair in counts} for n in (0, 1))
    causes = sorted(true | named)
    columns = [n for n, cause in enumerate(causes) if cause in named]
    rows = [["", "cause", *(str(n + 1) for n in columns)]]
    for n, cause in enumerate(causes):  # a cause that is only named gets a row just for its number
        cells = (str(counts[cause, causes[k]] or ".") for k in columns if cause in true)
        rows.append([str(n + 1), cause, *cells])
    return rows


@pytest.mark.parametrize("bugs", [WRONG[::36], pytest.param(WRONG, marks=pytest.mark.thorough)])
def test_causes_are_named(bugs, tables):
    named = {bug: diagnosis(bug).cause for bug in bugs}
    misses = [
        f"{b.name}: {b.cause}, named {cause}" for b, cause in named.items() if b.cause != cause
    ]
    right = len(bugs) - len(misses)
    tables[f"causes of wrong gradients: {right} of {len(bugs)} named correctly"] += confusion(
        (bug.cause, cause) for bug, cause in named.items()
    )
    assert right >= NAMED * len(bugs), "\n".join(misses)


def cause_of(f, *inputs):
    """The cause that the check names for a wrong f."""
    with pytest.raises(mh.GradcheckError) as failed:
        mh.gradcheck(f, *inputs)
    return failed.value.diagnosis.cause


def attention_without_taps(mask=None, scale=None, **fault):
    """(…, T, D), (…, S, D), (…, S, Dv) -> (…, T, Dv), with replaceable steps of the pullback."""

    def attention(query, key, value):
        c = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
        scores = c * query @ key.mT
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
        p = e / e.sum(axis=-1, keepdims=True)

        def pullback(dout):
            n = SimpleNamespace(q=query, k=key, v=value, p=p, c=c, dout=dout)
            n.dp = dout @ value.mT
            right = {
                "ds": lambda n: p * (n.dp - (p * n.dp).sum(axis=-1, keepdims=True)),
                "dq": lambda n: c * n.ds @ key,
                "dk": lambda n: c * n.ds.mT @ query,
                "dv": lambda n: p.mT @ dout,
            }
            for name, rule in (right | fault).items():
                setattr(n, name, rule(n))
            return n.dq, n.dk, n.dv

        return p @ value, pullback

    return attention


WITHOUT_TAPS = {
    "softmax-row-term": {"ds": lambda n: n.p * n.dp},
    "softmax-diagonal": {"ds": lambda n: n.p * (1 - n.p) * n.dp},
    "softmax-without-p": {"ds": lambda n: n.dp - (n.p * n.dp).sum(axis=-1, keepdims=True)},
    "softmax-mean": {"ds": lambda n: n.p * (n.dp - (n.p * n.dp).mean(axis=-1, keepdims=True))},
    "scale": {"dq": lambda n: n.ds @ n.k},
    "operand-transposed": {"dv": lambda n: n.p @ n.dout},
    "operand-transposed ": {"dk": lambda n: n.c * n.ds @ n.q},
    "operand-wrong": {"dq": lambda n: n.c * n.dp @ n.k},
    "unexplained": {"dk": lambda n: np.roll(n.ds.mT @ n.q, 1, axis=-2)},
}


def queries_keys_values(rng):
    return [rng.standard_normal((2, 5, width)) for width in (6, 6, 7)]


@pytest.mark.parametrize("mask", [None, np.tri(5, dtype=bool)], ids=["full", "causal"])
@pytest.mark.parametrize("name", WITHOUT_TAPS)
def test_attention_without_taps_is_recognised(name, mask, rng):
    f = attention_without_taps(mask, **WITHOUT_TAPS[name])
    assert cause_of(f, *queries_keys_values(rng)) == name.strip()


def test_attention_of_another_scale_without_taps_is_recognised(rng):
    f = attention_without_taps(scale=1.0, **WITHOUT_TAPS["softmax-row-term"])
    assert cause_of(f, *queries_keys_values(rng)) == "softmax-row-term"


@pytest.mark.parametrize("cause", ["softmax-row-term", "scale"])
def test_attention_without_taps_on_tensors_is_recognised(cause, rng):
    operation = mh.operation(attention_without_taps(**WITHOUT_TAPS[cause]))
    tensors = (mh.Tensor(x, requires_grad=True) for x in queries_keys_values(rng))
    assert cause_of(lambda q, k, v: operation(q, k, v), *tensors) == cause


@each([b for b in WRONG if b.base.name in ("attention", "layer norm")])
def test_causes_are_named_in_float32(bug):
    f, inputs = bug.make(np.random.default_rng(0))
    assert cause_of(f, *(x.astype(np.float32) for x in inputs)) == bug.cause


def test_a_missing_scale_is_named_only_where_a_scale_belongs(rng):
    f = attention_without_taps(dv=lambda n: np.sqrt(7) * n.p.mT @ n.dout)
    assert cause_of(f, *queries_keys_values(rng)) == "factor"


def test_a_factor_that_is_an_integer_square_root_of_the_width_is_called_ambiguous(rng):
    q, k, v = (rng.standard_normal((2, 5, 4)) for _ in range(3))
    f = attention_without_taps(dq=lambda n: 2 * n.c * n.ds @ n.k)
    with pytest.raises(mh.GradcheckError, match=r"Any\s+other\s+factor\s+of\s+2\s+would\s+look"):
        mh.gradcheck(f, q, k, v)


def elementwise(value, gradient):
    return lambda x: (value(x), lambda dy: (gradient(x, dy),))


def test_messages_use_the_letters_of_the_function_under_check(rng):
    def softmax(z):
        s = mh.functional.softmax.with_pullback(z)[0]
        return s, lambda ds: (s * (ds - ds.mean(axis=-1, keepdims=True)),)

    def shown(f, *inputs):
        with pytest.raises(mh.GradcheckError) as failed:
            mh.gradcheck(f, *inputs)
        return " ".join(str(failed.value).split())

    assert "dz = s · (ds − mean(ds))" in shown(softmax, rng.standard_normal((3, 4)))
    on_tape = mh.operation(softmax)
    x = mh.Tensor(rng.standard_normal((3, 4)), requires_grad=True)
    assert "Correct: dx = y · (dy − Σ dy · y)" in shown(lambda x: 2 * on_tape(2 * x), x)
    f = attention_without_taps(**WITHOUT_TAPS["softmax-row-term"])
    assert "dscores = weights · dweights:" in shown(f, *queries_keys_values(rng))


def test_the_page_on_gradient_checks_lists_every_cause():
    page = (Path(__file__).parents[3] / "docs" / "gradient-checks.md").read_text(encoding="utf-8")
    table = page.partition("| at | causes that it names |")[2].partition("\n\n")[0]
    assert sorted(re.findall("`(.*?)`", table)) == sorted([*CAUSES, "sign", "factor"])


def test_the_course_has_every_chapter_that_a_diagnosis_names():
    sources = Path(mh.diagnosis.__file__).parent.rglob("*.py")
    named = {c for path in sources for c in re.findall(r'"(\d\d [\w-]+)"', path.read_text("utf-8"))}
    assert len(named) > 5
    assert named <= {f"{chapter.number:02} {chapter.name}" for chapter in CHAPTERS.values()}


@pytest.mark.parametrize("name", ["matmul", "linear", "attention"])
def test_a_wrong_matrix_product_refers_to_the_chapter_that_derives_it(name, rng):
    x, w = rng.standard_normal((4, 4)), rng.standard_normal((4, 4))
    wrong = lambda a, b: (a @ b, lambda dy: (dy @ b, a.T @ dy))  # noqa: E731
    chapters = {"matmul": "02 autograd", "linear": "04 projections", "attention": "05 attention"}
    inputs = {"matmul": ("a", "b"), "linear": ("x", "weight"), "attention": ("query", "key")}
    with pytest.raises(mh.GradcheckError) as failed:
        mh.gradcheck(wrong, x, w, names=inputs[name])
    assert failed.value.diagnosis.chapter == chapters[name]


@pytest.mark.parametrize("axis", range(3))
def test_softmax_is_recognised_along_any_axis(axis, rng):
    def softmax(x):
        e = np.exp(1.5 * x)
        return e / e.sum(axis=axis, keepdims=True)

    def sums(x, dy, along):
        return (softmax(x) * dy).sum(axis=along, keepdims=True)

    x, other = rng.standard_normal((3, 4, 5)), (axis + 1) % 3
    wrong = {
        "softmax-row-term": lambda x, dy: 1.5 * softmax(x) * dy,
        "softmax-axis": lambda x, dy: 1.5 * softmax(x) * (dy - sums(x, dy, other)),
        "softmax-mean": lambda x, dy: 1.5 * softmax(x) * (dy - sums(x, dy, axis) / x.shape[axis]),
    }
    for name, gradient in wrong.items():
        assert cause_of(elementwise(softmax, gradient), x) == name


def test_a_scaled_embedding_is_recognised_as_a_table(rng):
    tokens = np.array([1, 2, 1, 4])

    def embedding(table):
        def pullback(dy):
            dtable = np.zeros_like(table)
            dtable[tokens] = 3 * dy
            return (dtable,)

        return 3 * table[tokens], pullback

    assert cause_of(embedding, rng.standard_normal((6, 5))) == "repeats-overwritten"


def test_a_missing_target_is_named_only_after_a_softmax(rng):
    def softmax(x):
        e = np.exp(x)
        return e / e.sum(axis=-1, keepdims=True)

    gradient = lambda x, dy: softmax(x) * (dy - (softmax(x) * dy).sum(axis=-1, keepdims=True))  # noqa: E731
    f = elementwise(softmax, lambda x, dy: gradient(x, dy) * [1, -1])  # rows (a, −a) have one sign
    assert cause_of(f, rng.standard_normal((3, 2))) == "unexplained"
    targets = np.eye(4)[[0, 2, 1]]
    loss = lambda x: -(np.log(softmax(x)) * targets).sum()  # noqa: E731
    x = rng.standard_normal((3, 4))
    assert cause_of(elementwise(loss, lambda x, dy: dy * softmax(x)), x) == "target-missing"
    wrong_sign = elementwise(loss, lambda x, dy: dy * (softmax(x) + targets))
    assert cause_of(wrong_sign, x) == "unexplained"


def test_a_gradient_of_zeros_is_not_taken_for_dropout(rng):
    keep = rng.permuted(np.tile([2.0, 0.0], 12)).reshape(4, 6)
    dropout = elementwise(lambda x: x * keep, lambda x, _: np.zeros_like(x))
    assert cause_of(dropout, rng.random((4, 6))) == "zero"


def test_a_mistake_hidden_from_one_consumer_is_seen_by_another(rng):
    def f(x, *, tap=lambda _, x: x):
        left, all_ = tap("left", 2 * x[:, 0]), tap("all", np.sin(x))

        def pullback(dleft, dall):
            dx = dall * np.cos(x) * [1, 1.1, 1]  # wrong in entries that left does not use
            dx[:, 0] += 2 * dleft
            return dx, {"left": dleft, "all": dall}

        return (1 * left, 1 * all_), pullback

    assert cause_of(f, rng.standard_normal((4, 3))) == "unexplained"


def test_an_array_without_a_gradient_is_not_a_step(rng):
    bent = mh.operation(lambda x: (x * x, lambda dy: (x * dy,)))
    key = mh.Tensor(rng.standard_normal((3, 4)), requires_grad=True)
    assert cause_of(lambda key, bias: bent(key) + bias, key, rng.standard_normal(4)) == "factor"
