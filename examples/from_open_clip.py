"""Two small towers of open_clip, trained with FlatNCE on ten pairs per batch: digits and captions.

One line differs from the same script with open_clip's ClipLoss: the loss.
"""

import math

import torch
from open_clip import SimpleTokenizer
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from sklearn.datasets import load_digits

from flatnce.integrations.open_clip import FlatClipLoss

NAMES = "zero one two three four five six seven eight nine".split()


def towers():
    """A vision and a text transformer of two layers each."""
    vision = CLIPVisionCfg(layers=2, width=64, head_width=32, patch_size=2, image_size=8)
    text = CLIPTextCfg(context_length=12, width=64, heads=2, layers=2)
    return CLIP(embed_dim=64, vision_cfg=vision, text_cfg=text, output_dict=True)


def main(steps=100):
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images / 8 - 1, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1)
    labels = torch.tensor(data.target)
    members = [(labels[:1000] == digit).nonzero()[:, 0] for digit in range(10)]
    captions = SimpleTokenizer(context_length=12)(NAMES)

    model = towers()
    loss_fn = FlatClipLoss()  # was: ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    history = []
    for step in range(steps):
        # One image of each digit, so that no two pairs of a batch share their caption.
        rows = torch.stack([those[torch.randint(len(those), ())] for those in members])
        losses = loss_fn(**model(images[rows], captions), output_dict=True)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        last = loss_fn.last
        history.append({"loss": last.loss.item(), "ess": last.ess.item()})
        if step % 20 == 19:
            print(f"step {step}: loss {last.loss:.3f}, ESS {last.ess:.2f}, gain {last.gain:.2f}")
    with torch.no_grad():
        out = model.eval()(images[1000:], captions)
        right = (out["image_features"] @ out["text_features"].T).argmax(1) == labels[1000:]
    print(f"zero-shot accuracy on {len(right)} other digits: {right.float().mean():.3f}")
    return history, right.float().mean().item()


if __name__ == "__main__":
    main()
