"""Train a small language model of characters, save it, load it, and let it continue a prompt.

python examples/train_and_generate.py
python examples/train_and_generate.py --text shakespeare.txt --steps 2000 --prompt "ROMEO:"
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from linattn.torch.nn import GatedDeltaNet, LinearAttention, TransformerBlock, TransformerLM


def build(characters: str) -> TransformerLM:
    """Two blocks of different kinds; the same call builds the model to train and to load."""
    layers = LinearAttention(64, num_heads=4), GatedDeltaNet(64, num_heads=4)
    return TransformerLM(len(characters), [TransformerBlock(layer) for layer in layers])


def encode(text: str, characters: str) -> torch.Tensor:
    return torch.tensor([characters.index(c) for c in text])


def train(model: TransformerLM, tokens: torch.Tensor, steps: int, batch: int, length: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for step in range(1, steps + 1):
        begin = torch.randint(len(tokens) - length, (batch, 1))
        piece = tokens[begin + torch.arange(length + 1)]  # (batch, length + 1)
        logits = model(piece[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 25 == 0:
            print(f"step {step}: loss {loss.item():.2f}")


def save(model: TransformerLM, characters: str, file: Path) -> None:
    torch.save({"characters": characters, "weights": model.state_dict()}, file)


def load(file: Path) -> tuple[TransformerLM, str]:
    saved = torch.load(file, weights_only=True)
    model = build(saved["characters"])
    model.load_state_dict(saved["weights"])
    return model.eval(), saved["characters"]


def generate(model: TransformerLM, characters: str, prompt: str, steps: int) -> str:
    """The prompt and its continuation; each token takes the same time."""
    tokens = model.generate(encode(prompt, characters)[None], steps=steps, temperature=0.5)
    return "".join(characters[i] for i in tokens[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path(__file__), help="default: this program")
    parser.add_argument("--model", type=Path, default=Path("model.pt"), help="where to save it")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--steps", type=int, default=200, help="of training")
    options = parser.parse_args()

    torch.set_num_threads(1)  # more make so small a model slower, above all on a busy machine
    torch.manual_seed(0)
    text = options.text.read_text(encoding="utf-8")
    characters = "".join(sorted({*text, *options.prompt}))
    model = build(characters)
    train(model, encode(text, characters), options.steps, batch=8, length=64)
    save(model, characters, options.model)

    model, characters = load(options.model)
    print(generate(model, characters, options.prompt, steps=200))


if __name__ == "__main__":
    main()
