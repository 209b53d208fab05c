"""Texts, tokens, batches, the bigram table and digits."""

import hashlib
import math
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from minimha.training import data


def test_text_becomes_tokens_and_back():
    vocabulary = data.CharacterTokenizer("hello")
    assert vocabulary.characters == ["e", "h", "l", "o"]
    assert vocabulary.decode(vocabulary.encode("hole")) == "hole"
    assert vocabulary.encode("").dtype == vocabulary.encode("hole").dtype == np.int64
    with pytest.raises(ValueError, match=r"^'a' is not among the 4 characters of the vocabulary$"):
        vocabulary.encode("halo")


def test_the_default_text_needs_no_download():
    text = data.python_reference()
    assert len(text) > 100_000
    assert "lambda" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a\0b" * 99, "is binary"),
    ],
)
def test_unusable_files_are_named(content, message, tmp_path):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as failure:
        data.read_text(path)
    assert "\n" not in str(failure.value)
    assert str(path) in str(failure.value)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server in place of the network: the folder that it serves, and how often it was asked."""
    pytest.importorskip("pooch")
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as listening:
        thread = Thread(target=listening.serve_forever, args=[0.01])
        thread.start()
        port = listening.server_address[1]
        monkeypatch.setattr(data, "_SHAKESPEARE", f"http://127.0.0.1:{port}/input.txt")
        monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / name)
        yield folder, asked
        listening.shutdown()
        thread.join()


@pytest.mark.thorough  # imports pooch and starts a server
def test_tiny_shakespeare_is_downloaded_once_and_checked(server, monkeypatch):
    folder, asked = server
    with pytest.raises(ValueError, match=r"^cannot download \S*: connect to the network once") as e:
        data.shakespeare()
    assert "\n" not in str(e.value)
    content = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"
    folder.joinpath("input.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"is not the expected text: its SHA-256 differs") as e:
        data.shakespeare()
    assert "\n" not in str(e.value)
    monkeypatch.setattr(data, "_SHA256", hashlib.sha256(content).hexdigest())
    asked.clear()
    assert data.shakespeare() == data.shakespeare() == content.decode()
    assert asked == ["/input.txt"]


def test_the_held_out_part_is_the_end_of_the_text_and_at_least_one_context_long():
    tokens = np.arange(100)
    parts = data.split(tokens, 30)
    np.testing.assert_array_equal(np.concatenate(parts), tokens)
    assert len(parts.validation) == 31
    assert len(data.split(tokens, 5).validation) == 10
    with pytest.raises(
        ValueError, match=r"61 characters: a context of 30 needs at least 62, .* longer text$"
    ):
        data.split(tokens[:61], 30)


def test_targets_are_the_next_tokens(rng):
    tokens = np.arange(50) * 3
    inputs, targets = next(data.random_batches(tokens, batch=4, context=7, rng=rng))
    assert inputs.shape == (4, 7)
    np.testing.assert_array_equal(targets, inputs + 3)
    inputs, targets = data.windows(tokens, 7)
    assert inputs.shape == (7, 7)
    np.testing.assert_array_equal(inputs.ravel(), tokens[:49])
    np.testing.assert_array_equal(targets.ravel(), tokens[1:50])


def test_the_bigram_table_equals_counting_by_hand():
    train, validation = "abacab", "abcb"
    pairs, before = ["ab", "ba", "ac", "ca", "ab"], "abaca"
    expected = -np.mean(
        [math.log((pairs.count(p) + 0.1) / (before.count(p[0]) + 0.3)) for p in ("ab", "bc", "cb")]
    )
    vocabulary = data.CharacterTokenizer(train)
    parts = data.Split(vocabulary.encode(train), vocabulary.encode(validation))
    assert data.bigram_loss(parts, 3) == pytest.approx(expected, rel=1e-14)
