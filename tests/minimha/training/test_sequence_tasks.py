"""Copying, reversing and adding: their items, what is held out, and that they are learned."""

import numpy as np
import pytest

import minimha as mh
from minimha.training import sequence_tasks as tasks


def test_the_items_of_each_task():
    copies, reversals, sums = tasks.copying(200), tasks.reversing(200), tasks.adding()
    assert all(source == ">" + target for source, target in copies)
    assert all(source == "<" + target[::-1] for source, target in reversals)
    assert {len(target) for _, target in copies} == {1, 2, 3, 4, 5, 6}
    assert len(set(copies)) == len(set(reversals)) == 200
    assert len(set(sums)) == 90 * 90
    assert dict(sums)["27+58"] == "85"
    assert tasks.copying(200) == copies != tasks.copying(200, rng=1)


def test_repeated_words_are_dropped_so_few_words_are_short():
    lengths = [len(word) for word in tasks.words(2000, 6, np.random.default_rng(0))]
    assert lengths.count(1) <= 26
    assert lengths.count(5) > 300


def test_held_out_sums_are_new_in_both_orders():
    train, held_out = tasks.hold_out(tasks.adding(), rng=3)
    assert sorted(train + held_out) == sorted(tasks.adding())
    assert abs(len(held_out) - 810) < 20
    seen = {source for source, _ in train}
    assert not seen & {source for source, _ in held_out}
    assert not seen & {"+".join(reversed(source.split("+"))) for source, _ in held_out}


def test_the_loss_ignores_what_follows_the_end():
    net = mh.EncoderDecoder(len(tasks.SYMBOLS), d_model=8, num_heads=2, num_layers=1)
    pairs = [(">ab", "ab"), ("10+90", "100"), ("<a", "a")]
    together = tasks.loss(net, *tasks.arrays(pairs)).item()
    alone = [tasks.loss(net, *tasks.arrays([pair])).item() for pair in pairs]
    assert together == pytest.approx(np.average(alone, weights=[3, 4, 2]), rel=1e-6)


def test_mistakes_are_the_answers_that_differ_anywhere():
    class Parrot(mh.EncoderDecoder):
        """Decodes the source without its first character, as if all were copies."""

        def encode(self, source, source_mask=None, *, rng=None):
            return source

        def decode(self, target, memory, source_mask=None, *, caches=None, rng=None):
            self.step = 0 if target[0, 0] == tasks.START else self.step + 1
            padded = np.pad(memory, ((0, 0), (0, 20)), constant_values=tasks.END)
            return mh.Tensor(np.eye(len(tasks.SYMBOLS))[padded[:, 1 + self.step, None]])

    net = Parrot(len(tasks.SYMBOLS), d_model=8, num_heads=2, num_layers=1)
    pairs = [(">abc", "abc"), ("<ab", "ba"), ("<aa", "aa"), (">ab", "abc")]
    assert tasks.mistakes(net, pairs) == [("<ab", "ba", "ab"), (">ab", "abc", "ab")]


@pytest.mark.thorough
def test_reversing_is_learned_without_a_mistake_on_new_words():
    train, held_out = tasks.hold_out(tasks.reversing(5000, longest=4))
    net = mh.EncoderDecoder(len(tasks.SYMBOLS), d_model=32, num_heads=4, num_layers=2)
    for _ in tasks.train(net, train, steps=400, batch=128):
        pass
    assert len(held_out) == 500
    assert tasks.mistakes(net, held_out) == []
