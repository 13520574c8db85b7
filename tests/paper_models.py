"""The configs of the paper's models, from the table in docs/scaling.md."""

from composed import ROOT
from transformers import Gemma3Config, LlamaConfig, PreTrainedConfig, Qwen3Config

SCALING = (ROOT / "docs" / "scaling.md").read_text()
_VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 896,
    "vision_use_head": False,
}


def table(text: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the table whose heading begins with some words."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    names = [cell.strip() for cell in lines[start].strip("|").split("|")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


MODELS = {row["model"]: row for row in table(SCALING, "| model | class |")}


def config(name: str) -> PreTrainedConfig:
    """Return the config of a model that the document describes."""
    row = MODELS[name]
    numbers = {
        "vocab_size": int(row["V"]),
        "hidden_size": int(row["hidden"]),
        "intermediate_size": int(row["intermediate"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "num_key_value_heads": int(row["KV heads"]),
        "head_dim": int(row["head size"]),
        "tie_word_embeddings": row["tied"] == "yes",
    }
    if row["class"] == "gemma3":
        return Gemma3Config(text_config=numbers, vision_config=_VISION)
    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[row["class"]](**numbers)
