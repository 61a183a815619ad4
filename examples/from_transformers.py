"""Hugging Face's Trainer with FlatNCE: a model that returns its loss, and one name changed.

SimCSE's way: two passes with different dropout are two views. The small BERT and its tokenizer
are made here, so that nothing is downloaded.
"""

import tempfile
from itertools import product

from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizer, TrainingArguments

from flatnce import FlatNCE
from flatnce.integrations.transformers import FlatNCETrainer

WHO = ("a cat", "my boss", "the boy", "she", "nobody", "the old sailor")
DOES = ("sleeps", "runs", "eats bread", "sings", "waits")
WHERE = ("at home", "outside", "on the train", "in the park")


class SentenceEncoder(nn.Module):
    """A small BERT that returns its loss."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": vocabulary}
        self.bert = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes))
        self.loss_fn = FlatNCE(temperature=0.05, layout="two_tower")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Tensor) -> dict[str, Tensor]:
        """Two passes, which dropout makes two views."""
        one, two = (self.bert(input_ids, attention_mask)[0].mean(dim=1) for _ in range(2))
        return {"loss": self.loss_fn(one, two), "embedding": one}


def main(folder: str, steps: int = 40) -> FlatNCETrainer:
    texts = [" ".join(words) for words in product(WHO, DOES, WHERE)]
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=300, min_frequency=1, show_progress=False)
    tokenizer = BertTokenizer(vocab=pieces.get_vocab())
    arguments = TrainingArguments(
        folder, max_steps=steps, logging_steps=steps // 4, per_device_train_batch_size=16,
        learning_rate=1e-3, report_to="tensorboard", save_strategy="no", use_cpu=True,
    )  # fmt: skip
    data = [tokenizer(text) for text in texts]
    model = SentenceEncoder(len(tokenizer))
    trainer = FlatNCETrainer(  # was: Trainer
        model, arguments, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(main(folder).diagnostics.verdicts()["loss_fn"])
