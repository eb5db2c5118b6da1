"""Prompts of the golden files: short, long, several scripts, code, chat, odd spacing, numbers."""

from __future__ import annotations

_TRAIN = (
    "The night train left the harbour a few minutes after ten. In the third carriage an old clockmaker unpacked his "
    "supper: bread, two boiled eggs, a twist of salt. Across from him a girl was reading a book about comets, and "
    "every time the train leaned into a curve she put a finger on the line so as not to lose her place. "
)
_RIVER = (
    "A river is older than its bridges. Engineers who build across it measure the flood of a hundred years, add a "
    "margin, and hope. In 1784 the ice took four of the nine arches in one night; the town rebuilt them in timber, "
    "then in stone, then in iron, and each time the toll went up by a farthing. The ledgers are still kept in the "
    "vestry. "
)
_BREAD = (
    "To make the bread, weigh 500 g of flour, 350 g of water, 10 g of salt and 2 g of dry yeast. Mix until no dry "
    "flour is left, wait half an hour, then fold the dough four times at intervals of twenty minutes. Let it rise "
    "until it has doubled, shape it, and bake it at 230 degrees for forty minutes in a closed pot. "
)
_NETWORK = (
    "A router keeps a table of prefixes. When a packet arrives, it looks for the longest prefix that matches the "
    "destination, rewrites the link-layer header, decrements the time to live and puts the packet into the queue of "
    "the outgoing port. If the queue is full, the packet is dropped, and it is the sender's task to notice and slow "
    "down. "
)
_CODE = '''\
class Node:
    def __init__(self, key, left=None, right=None):
        self.key = key
        self.left = left
        self.right = right


def insert(node, key):
    """Insert key into the tree and return its root."""
    if node is None:
        return Node(key)
    if key < node.key:
        node.left = insert(node.left, key)
    elif key > node.key:
        node.right = insert(node.right, key)
    return node


def walk(node):
    """Yield the keys in order."""
'''
_TABLE = "\n".join(f"{year}\t{year * 37 % 1009}\t{year * 7919 % 100003 / 100:.2f}" for year in range(1990, 2010))


def chat(*turns: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    """SmolLM2's chat template written out: `turns` alternate user, assistant, user."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for i, turn in enumerate(turns):
        text += f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{turn}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


PLAIN = [
    "Hello",
    "The",
    "The capital of France is",
    "Once upon a time",
    "Water boils at a temperature of",
    "My favourite colour is blue because",
    "In 1969, the first",
    "List three animals that can fly:\n1.",
    "Q: How many legs does a spider have?\nA:",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "a a a a a a a a",
    "ERROR: connection refused (errno 111) at",
    "Dear Sir or Madam,\n\n",
    "To be, or not to be, that is the",
    "   leading spaces",
    "trailing spaces   ",
    "many      spaces     between    words   and\t\ttabs",
    "\n\n\nthree newlines first",
    "1, 1, 2, 3, 5, 8, 13,",
    "3.14159265358979323846",
    "12345678901234567890 + 98765432109876543210 =",
    "The year 2024 has 366 days, 2023 has",
    "0x1F 0b1010 1e-9 1_000_000",
    "Phone: +44 20 7946 0958, e-mail:",
    "你好,世界。今天天气",
    "中国的首都是",
    "日本の首都は東京です。フランスの首都は",
    "안녕하세요, 저는",
    "Привет, как дела? Меня зовут",
    "Η Αθήνα είναι η πρωτεύουσα",
    "مرحبا بالعالم",
    "Élève, où étais-tu à Noël? Là-bas,",
    "🙂🚀👩‍👩‍👧‍👦 emoji and",
    "naïve café ﬁnance ½ ②",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '{"name": "Ada", "born": 1815, "languages": [',
    "<html>\n  <head>\n    <title>",
    "for (let i = 0; i < items.length; i++) {\n\t",
    "$ git commit -m ",
    _CODE,
    _TABLE,
]

SMOLLM2 = [
    *PLAIN,
    chat("What is the capital of Germany?"),
    chat("Write a haiku about the sea."),
    chat("hi"),
    chat("What is 17 + 25?", "17 + 25 = 42.", "And twice that?"),
    chat("Translate 'good morning' into Spanish.", system="You answer with one short sentence."),
    chat("Write a Python function that reverses a string."),
    chat("请用中文介绍一下你自己。"),
    chat(f"Summarise this text in one sentence:\n\n{_TRAIN}{_RIVER}"),
    _TRAIN,
    _RIVER + _BREAD,
    _TRAIN + _RIVER + _BREAD + _NETWORK,
    _NETWORK + _BREAD + _RIVER + _TRAIN + "\n\nIn short:",
    chat(f"{_BREAD}{_NETWORK}{_TRAIN}{_RIVER}\n\nWhich of these four texts is a recipe?"),
    (_CODE + "\n") * 2,
]

GEMMA3 = [
    "Hello",
    "The capital of France is",
    "many      spaces     between    words   and\t\ttabs",
    "12345678901234567890 + 98765432109876543210 =",
    "中国的首都是",
    "Привет, как дела? Меня зовут",
    "🙂🚀👩‍👩‍👧‍👦 emoji and",
    _CODE,
    _RIVER,
    _TRAIN + _RIVER + _BREAD + _NETWORK,
    # Longer than Gemma 3's sliding window of 512 tokens.
    (_TRAIN + _RIVER + _BREAD + _NETWORK) * 2 + _CODE,
    _TABLE + "\n" + _NETWORK + _TRAIN + "\n" + _CODE + _RIVER + _BREAD,
]
