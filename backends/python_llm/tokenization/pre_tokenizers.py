"""How text is cut into words before byte-level BPE, by the name a GGUF file gives (`tokenizer.ggml.pre`).

The names are llama.cpp's. The cut is that of the original tokenizer.json (whose regular expressions these are), as is
the Unicode normalisation where it is known to have one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers
from tokenizers import pre_tokenizers as pre

from python_llm.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut."""

    splits: tuple[str, ...]
    """Regular expressions, applied one after the other: what matches and what lies between become words."""
    nfc: bool = False
    """Text is brought into Unicode's NFC first."""
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    add_bos: bool = False
    """Whether BOS goes in front when the file does not say."""

    def build(self) -> pre.PreTokenizer:
        steps = [pre.Split(Regex(split), "isolated") for split in self.splits]
        return pre.Sequence([*steps, pre.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_LLAMA3_KIND = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN = PreTokenizer((_LLAMA3,))
_QWEN2_PLAIN = PreTokenizer((_QWEN2,))
_GPT2_KIND = PreTokenizer((_GPT2,))
_GPT2_NFC = PreTokenizer((_GPT2,), nfc=True)
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_GPT4O_KIND = PreTokenizer((_GPT4O,))
_DEEPSEEK3_KIND = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
# llama.cpp's stand-in where the converter did not know the model's own: close to the model's.
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_BY_NAME: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "jais", "trillion"), _GPT2_KIND),
    "granite-docling": _GPT2_KIND,
    **dict.fromkeys(("olmo", "mpt"), _GPT2_NFC),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS),
    "command-r": PreTokenizer((r"\p{N}", _GPT2), nfc=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_KIND),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_PLAIN),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"), _QWEN2_PLAIN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_KIND),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3_KIND),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The way to cut that a GGUF file calls `name`; ModelLoadError when it is not known."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ModelLoadError(
            f"The GGUF file's pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are: "
            f"{', '.join(sorted(_BY_NAME))}."
        ) from None
