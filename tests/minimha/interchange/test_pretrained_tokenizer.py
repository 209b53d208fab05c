"""Texts and chats become the tokens that transformers makes of them, and tokens become text piece by
piece. The templates are made of the parts that published ones use."""

import json
import os
import sys
from functools import partial

import numpy as np
import pytest

from minimha import interchange
from minimha.training import data

tokenizers = pytest.importorskip("tokenizers")

CHATML = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' -}}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' -}}\n{% endif %}\n"
)
TEMPLATES = {
    "ChatML": CHATML,
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "JSON": "{{ messages | tojson(indent=2) }} é",
    "loop control": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "marks of answers": "{% for m in messages %}\n  {%- generation -%}\n {{ m.content }} x\n"
    "  {% endgeneration %}\n{% endfor %}.",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
}
CHAT = [
    {"role": "system", "content": " Answer in ünits. "},
    {"role": "user", "content": "<b>to be</b> 😀"},
    {"role": "assistant", "content": "or not"},
    {"role": "user", "content": "to be"},
]
SPECIAL = {
    "bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "special": True},
    "add_bos_token": True, "tokenizer_class": "PreTrainedTokenizerFast",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokenizer of GPT-2's kind, which begins every text with <s>."""
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(["to be or not to be"] * 9, vocab_size=270)
    bpe.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
    )
    bpe.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "tokenizer_config.json", SPECIAL)
    return tmp_path


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_text_becomes_tokens_and_text_again(folder):
    tokenizer = interchange.PretrainedTokenizer(folder)
    tokens = tokenizer.encode("to be, ça!")
    assert tokens.dtype == np.int64
    assert len(tokens) < len("to be, ça!".encode())
    assert len(tokenizer) == max(tokens) + 4  # <s> is the first of four special tokens
    assert tokenizer.decode(tokens) == "to be, ça!"


def test_a_text_comes_in_pieces_of_whole_characters(folder):
    tokenizer = interchange.PretrainedTokenizer(folder)
    prompt, tokens = np.split(tokenizer.encode("to be: 日本 😀 or"), [3])
    pieces = list(tokenizer.stream(iter(tokens), prompt))
    assert "".join([tokenizer.decode(prompt), *pieces]) == "to be: 日本 😀 or"
    assert {"日", "本", "😀"} < {piece.strip() for piece in pieces}


@pytest.mark.parametrize(
    ("generation", "config", "stop"),
    [
        ({"eos_token_id": 3}, {"eos_token_id": 4}, [3]),
        ({"eos_token_id": [3, 5]}, {}, [3, 5]),
        ({"eos_token_id": None}, {"eos_token_id": 4}, [4]),
        ({}, {}, []),
    ],
)
def test_the_tokens_that_end_a_text_are_those_of_its_generation_config(
    generation, config, stop, folder
):
    write(folder / "generation_config.json", generation)
    write(folder / "config.json", config)
    assert interchange.PretrainedTokenizer(folder).stop == stop


@pytest.mark.parametrize("wrong", ["2", -1, True, [1.5], {}])
def test_a_wrong_end_is_refused_by_the_name_of_its_file_and_entry(wrong, folder):
    write(folder / "generation_config.json", {"eos_token_id": wrong})
    with pytest.raises(
        ValueError, match=r"generation_config.json: eos_token_id is .*, but must be"
    ):
        interchange.PretrainedTokenizer(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("where", ["entry", "several entries", "file"])
def test_a_chat_becomes_the_tokens_of_transformers(name, where, folder):
    pytest.importorskip("transformers")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import PreTrainedTokenizerFast

    if where == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATES[name], encoding="utf-8")
    else:
        several = [
            {"name": "tools", "template": "no"},
            {"name": "default", "template": TEMPLATES[name]},
        ]
        entry = TEMPLATES[name] if where == "entry" else several
        write(folder / "tokenizer_config.json", SPECIAL | {"chat_template": entry})
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert interchange.PretrainedTokenizer(folder).encode_chat(CHAT).tolist() == expected


def test_a_chat_in_chatml(folder):
    pytest.importorskip("jinja2")
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    tokenizer = interchange.PretrainedTokenizer(folder)
    start, end = "<|im_start|>", "<|im_end|>\n"
    text = f"{start}user\nto be{end}{start}assistant\n"
    expected = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_chat([{"role": "user", "content": " to be "}]).tolist() == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template: its model only continues texts"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% for %}", "Expected an expression"),
    ],
)
def test_a_chat_that_the_template_does_not_fit_is_refused(template, message, folder):
    pytest.importorskip("jinja2")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        interchange.PretrainedTokenizer(folder).encode_chat(CHAT)


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (data.shakespeare, "pooch"),
        (partial(interchange.PretrainedTokenizer, "."), "tokenizers"),
    ],
)
def test_a_missing_package_is_named(call, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RuntimeError, match=f"^this needs {package}: pip install {package}$"):
        call()


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"^cannot read .*tokenizer\.json"):
        interchange.PretrainedTokenizer(tmp_path)
