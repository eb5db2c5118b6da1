"""Texts that tokenizers get wrong, and a strategy for more of them."""

from hypothesis import strategies as st

NASTY = [
    "",
    " ",
    "Hello world",
    " leading space",
    "   three spaces",
    "trailing   ",
    "a  b   c    d",
    "\ttabs\t\tand\n\nnew lines\r\n\r\n  \n",
    "\n",
    "def f(x):\n    return {'a': x[0]**2}  # ≥ 3\n",
    "don't WON'T I'll we've 's",
    "0 1 23 456 7890 12345678901234567890 3.14159 ٣٤٥ ½ Ⅳ",
    "日本語と中文，混ぜる。한국어 텍스트",
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇿",
    "e\u0301 n\u0303 \u0915\u094d\u0937 Z\u0351\u036b\u0343",
    "žluťoučký kůň ÀÉÎÕÜ ß ﬀ Ω",
    "\u00a0nbsp\u2003em\u200bzwsp\ufeffbom",
    "\x00\x01\x7f control",
    "<|im_start|>user\nhi<|im_end|>\n<end_of_turn><eos><0x41>",
    "▁literal▁marks ▁ ▁▁",
    "Ġliteral Ċ",
    "\U0001f600" * 5 + "\U00020000",
    "http://example.org/?q=a+b&c=%20#x <b>tag</b> a_b-c.d",
]

texts = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [" ", "  ", "\n", "\t", "a", "the", "1", "23", "'s", "日本", "👨‍👩‍👧", "é", "e\u0301", "▁", "<eos>", "."]
        ),
        max_size=15,
    ).map("".join),
)
