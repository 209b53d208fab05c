"""The text of pretrained models: their tokens, their chats, and the tokens that end a text."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .json_file import OBJECT, Kind, read_json, require


def _is_token(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


_TOKENS = Kind(
    "None, a token or a list of tokens",
    lambda x: x is None or _is_token(x) or (isinstance(x, list) and all(map(_is_token, x))),
)


class PretrainedTokenizer:
    """The tokenizer of a pretrained model, from the files of Hugging Face in its folder.

    tokenizer.json          the vocabulary; the library `tokenizers` reads it
    generation_config.json  or else config.json: eos_token_id, the tokens that end a text, which
                            become the attribute `stop`
    chat_template.jinja     or else an entry of tokenizer_config.json: the program that turns a chat
                            into a text. Jinja's sandbox runs it, as in `transformers`
    """

    def __init__(self, folder: str | Path) -> None:
        """Read the files in the folder. Raises ValueError if tokenizer.json is missing, if a file
        that is read is unusable, or if an eos_token_id is neither a token nor a list of tokens;
        RuntimeError without the package tokenizers."""
        self._folder = Path(folder)
        tokenizers = package("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"cannot read {self._folder / 'tokenizer.json'}: {error}") from error
        self.stop: list[int] = []
        for name in ("generation_config.json", "config.json"):
            ends = self._read(name).get("eos_token_id")
            require(self._folder / name, "eos_token_id", ends, _TOKENS)
            if ends is not None:
                self.stop = ends if isinstance(ends, list) else [ends]
                break

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """The tokens (T,) of a text, with the special tokens that the model expects, such as "<s>"
        at the beginning."""
        return np.array(self._tokenizer.encode(text).ids, dtype=np.int64)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> np.ndarray:
        """The tokens (T,) of a chat, up to where the model's answer begins.

        messages  dictionaries such as {"role": "user", "content": "Who was Turing?"}; usual roles
                  are system, user and assistant

        Raises ValueError if the model has no chat template, or the template refuses the messages;
        RuntimeError without jinja2.
        """
        jinja2, sandbox = package("jinja2"), package("jinja2.sandbox")
        names, template = self._template()
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

        def refuse(message: str) -> NoReturn:
            raise jinja2.TemplateError(message)

        environment.globals["raise_exception"] = refuse
        try:
            text = environment.from_string(template).render(
                names, messages=messages, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program
            raise ValueError(f"the chat template of {self._folder}: {error}") from error
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens (T,). Special tokens, such as "<s>", are left out."""
        return self._tokenizer.decode(list(map(int, tokens)))

    def stream(self, tokens: Iterable[int], prompt: Iterable[int] = ()) -> Iterator[str]:
        """Yield the text of each token as it arrives. If a token ends in the middle of a character,
        its text comes with that of the next token.

        prompt  the tokens that precede `tokens`. Their text is not yielded, but the text of a token
                can depend on the tokens before it
        """
        known = list(prompt)
        shown = self.decode(known)
        for token in tokens:
            known.append(token)
            text = self.decode(known)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(shown) :]
                shown = text

    def _template(self) -> tuple[dict[str, str], str]:
        """A dictionary of the special tokens that the chat template may use, such as
        {"bos_token": "<s>"}, and the text of the template. Raises ValueError if the model has
        none."""
        settings, file = self._read("tokenizer_config.json"), self._folder / "chat_template.jinja"
        template = settings.get("chat_template")
        if isinstance(template, list):  # several templates, each with a name
            found = [x.get("template") for x in template if x.get("name") == "default"]
            template = found[0] if found else None
        if file.exists():
            template = file.read_text(encoding="utf-8")
        if not isinstance(template, str):
            raise ValueError(f"{self._folder} has no chat template: its model only continues texts")
        names = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in settings.items()
            if name.endswith("_token") and isinstance(token, str | dict)
        }
        return names, re.sub(r"{%(-?\s*(?:end)?generation\s*-?)%}", r"{#\1#}", template)  # training

    def _read(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return dict(read_json(path, OBJECT)) if path.exists() else {}


def package(name: str) -> Any:
    """Import an optional package and return it. Raises RuntimeError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        name = name.partition(".")[0]
        raise RuntimeError(f"this needs {name}: pip install {name}") from error


def _as_json(x: Any, **settings: Any) -> str:
    """The filter `tojson` of chat templates: x as JSON. It replaces Jinja's own filter, which
    escapes characters such as "<" for HTML.

    settings  arguments of json.dumps that the template passes, such as indent=2
    """
    return json.dumps(x, **({"ensure_ascii": False} | settings))
