"""Heat maps for notebooks are HTML without scripts that shows every weight as text."""

import html.parser
import re

import numpy as np
import pytest
from contrast import contrast

from minimha import pictures


class Read(html.parser.HTMLParser):
    """A parsed page: tables as lists of rows of texts, the tags, and the text of <style>."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.style, self.shades = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self.shades += [int(v.removeprefix("--w:")) for k, v in attrs if k == "style"]

    def handle_data(self, data):
        if self.tags[-1][0] == "style":
            self.style += data
        elif self.tags[-1][0] in {"td", "th", "span"}:
            self.tables[-1][-1][-1] += data.strip("\n")


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.ones(5), (2, 3, 4))  # layers, heads, T; S


def test_each_weight_is_in_the_cell_of_its_query_and_key(weights):
    page = Read(pictures.attention_html(weights[0], "ab c", ["le", "chat", "\n", "", "."]).html)
    assert len(page.tables) == 3
    for table, head in zip(page.tables, weights[0], strict=True):
        assert table[0] == ["", "le", "chat", "↵", "", "."]
        assert [row[0] for row in table[1:]] == ["a", "b", "␣", "c"]
        said = np.array([[float(x) for x in row[1:]] for row in table[1:]])
        np.testing.assert_allclose(said, head, atol=0.005)
    np.testing.assert_allclose(page.shades, 100 * weights[0].ravel(), atol=0.5)


def test_weights_have_two_decimals_and_zero_is_written_0():
    weights = [[[0.75, 0.25], [1.0, 0.0], [0.004, 1.25], [np.nan, np.inf]]]
    page = Read(pictures.attention_html(weights, "abcd", "ab").html)
    found = [row[1:] for row in page.tables[0][1:]]
    assert found == [[".75", ".25"], ["1.00", "0"], [".00", "1.25"], ["NaN", "∞"]]
    assert page.shades == [75, 25, 100, 0, 0, 100, 0, 0]


def test_radio_buttons_select_a_head_and_the_first_is_shown(weights):
    page = Read(pictures.attention_html(weights, "abcd", "vwxyz").html)
    inputs = [attrs for tag, attrs in page.tags if tag == "input"]
    assert [a["value"] for a in inputs] == list("012345")
    assert ["checked" in a for a in inputs] == [True] + [False] * 5
    for n in range(6):
        assert f':has([value="{n}"]:checked)>section:nth-of-type({n + 1})' in page.style
    one = Read(pictures.attention_html(weights[0, :1], "abcd", "vwxyz").html)
    assert not [tag for tag, _ in one.tags if tag == "input"]  # one head needs no choice


def test_every_row_is_reachable_by_keyboard(weights):
    page = Read(pictures.attention_html(weights[0], "abcd", "vwxyz").html)
    assert sum(attrs.get("tabindex") == "0" for tag, attrs in page.tags if tag == "tr") == 3 * 4
    assert all("data-lm-suppress-shortcuts" in a for tag, a in page.tags if tag == "input")
    assert {"tr:focus", "tr:hover"} <= set(re.findall(r"tr:\w+", page.style))


def test_pictures_on_one_page_do_not_interfere(weights):
    """No ids, radio buttons of one form, forms that are not sent, and equal CSS rules."""
    few, many = (
        Read(pictures.attention_html(w, "abcd", "vwxyz").html) for w in (weights[0], weights)
    )
    for page in (few, many):
        tag, form = page.tags[0]
        assert (tag, form["method"]) == ("form", "dialog")
        assert not [tag for tag, attrs in page.tags if {"id", "for"} & set(attrs)]
    assert many.style.startswith(few.style)
    rules = re.findall(r"([^{}]+)\{", re.sub(r"/\*.*?\*/", "", many.style))
    for rule in rules:
        assert rule.strip().startswith(".minimha-attention" * 3), rule


@pytest.mark.parametrize(
    "token",
    ['as long as to be cut "><b onclick=x>', "<script>alert(1)</script>", "&lt;", "a\u202eb\0"],
)
def test_tokens_are_text(token):
    """The page has the same tags and attributes as that of a harmless token of the same length."""

    def tags(t):
        page = Read(pictures.attention_html([[[1.0]]], [t], title=t).html)
        plain = [(tag, a.keys() - {"title", "style"}) for tag, a in page.tags]
        return plain, page

    (found, page), (harmless, _) = tags(token), tags("x" * len(token))
    assert found == harmless
    shown = page.tables[0][1][0].removesuffix("…")
    assert "".join(c if c.isprintable() else "�" for c in token).startswith(shown)
    assert len(shown) >= min(len(token), 15)


def test_long_tokens_are_cut_with_the_full_text_on_hover():
    page = Read(pictures.attention_html([[[1.0]]], ["internationalisation"]).html)
    assert page.tables[0][1][0] == "internationalis…"
    assert {"title": "internationalisation"} in [a for tag, a in page.tags if tag == "span"]
    wide = Read(pictures.attention_html([[[1.0]]], ["漢" * 20]).html).tables[0][1][0]
    assert wide == "漢" * 7 + "…"


def test_the_picture_fetches_nothing_and_contains_no_script(weights):
    text = pictures.attention_html(weights, "abcd", "vwxyz", title="t").html.lower()
    for word in ("http", "//", "src", "href", "url(", "@import", "<script", "javascript", "<link"):
        assert word not in text, word
    assert not re.search(r"\son\w+\s*=", text)


def test_the_picture_of_a_chapter_is_below_60_kB(rng):
    """Four heads of 24 tokens without zero weights take at most 60 kB, which suits a chapter."""
    heads = pictures.attention_html(rng.dirichlet(np.ones(24), (4, 24)), ["token"] * 24)
    assert len(heads.html.encode()) < 60_000


def test_numbers_are_legible_on_every_shade(weights):
    """Cells are blue on white; numbers are black, and white above some percentage."""
    style = Read(pictures.attention_html(weights, "abcd", "vwxyz").html).style
    assert "rgb(8 48 107 / calc(var(--w) * 1%))" in style
    white_from = float(re.search(r"\(var\(--w, 0\) - ([\d.]+)\) \* 1000%", style)[1])
    for percent in range(101):
        blue = (255 + (np.array([8, 48, 107]) - 255) * percent / 100) / 255
        assert contrast(blue, [float(percent > white_from)] * 3) > 4.5, percent


def test_the_picture_is_saved_as_a_complete_page(weights, tmp_path):
    picture = pictures.attention_html(weights[0], "漢bcd", "vwxyz")
    assert "save('….html')" in repr(picture)
    path = picture.save(tmp_path / "heads.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert 'charset="utf-8"' in text
    assert text.endswith(picture._repr_html_())
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match=r"ends in \.html"):
        picture.save(tmp_path / "heads.png")
    with pytest.raises(PermissionError, match="cannot write"):
        picture.save(tmp_path / "nowhere" / "heads.html")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 65, 2), r"shape \(1, 1, 65, 2\): at most 64 queries and keys"),
        ((2, 65), r"weights has shape \(2, 65\), the labels need"),
        ((5, 64, 64), "16,384 weights, not 20,480: choose some heads"),
        ((0, 2, 3), "from 1 to .* not 0"),
        ((2, 0, 3), "from 1 to .* not 0"),
    ],
)
def test_weights_too_many_to_read_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        pictures.attention_html(np.zeros(shape), ["a"] * shape[-2], ["b"] * shape[-1])


def test_scores_are_refused_with_a_pointer_to_heat_map():
    with pytest.raises(ValueError, match=r"entries down to -1\.5: .* heat_map draws scores"):
        pictures.attention_html([[[0.5, -1.5]]], "a", "bc")
