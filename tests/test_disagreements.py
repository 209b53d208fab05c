"""docs/disagreements.md says what minimha does, and what torch does where it is installed."""

import importlib.util
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "disagreements.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "disagreements", ROOT / "benchmarks" / "disagreements.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stale(script, kind, questions):
    """Where the page says something else than the experiment: what it says, and what is so."""
    said, _ = script.read(PAGE)
    peer = kind()
    found = {q: (said[q, kind.name], script.verdict(script.QUESTIONS[q], peer)) for q in questions}
    return {q: pair for q, pair in found.items() if pair[0] != pair[1]}


def test_the_page_says_what_minimha_does(script):
    assert stale(script, script.Minimha, script.QUESTIONS) == {}


@pytest.mark.parametrize("column", ["TorchSdpa", "TorchMha"])
def test_the_page_says_what_torch_does(script, column):
    pytest.importorskip("torch", reason="torch is not installed")
    kind = getattr(script, column)
    stated = script.read(PAGE)[1][kind.name]
    if version("torch").partition("+")[0] != stated:
        pytest.skip(f"the page was written with torch {stated}")
    assert stale(script, kind, script.QUESTIONS.keys() - script.ROUNDED) == {}


def test_the_page_is_the_one_that_the_script_writes(script):
    verdicts, versions = script.read(PAGE)
    assert script.ABSENT not in [*verdicts.values(), *versions.values()]
    assert script.page(verdicts, versions) == PAGE, "write it again as it says"


def test_a_peer_that_is_not_installed_says_so(script, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(script, "importlib", SimpleNamespace(import_module=absent))
    peers = [script.installed(kind) for kind in script.PEERS]
    said = [script.verdict(script.polarity, peer) for peer in peers]
    assert said == ["may attend"] + ["not installed"] * 5


def test_advice_that_no_longer_holds_is_not_written(script):
    verdicts, versions = script.read(PAGE)
    verdicts["boolean mask: True =", "torch MHA"] = "may attend"
    with pytest.raises(ValueError, match="polarity, torch MHA: may attend, so this is wrong: Say"):
        script.page(verdicts, versions)
