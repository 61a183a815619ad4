"""sentence-transformers with FlatNCE: the two lines marked below are all that changes.

A small BERT, its tokenizer and its texts are made here, so that nothing is downloaded; yours
come from ``SentenceTransformer("name-of-a-model")`` and your own dataset.
"""

import tempfile
from itertools import product

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizer

from flatnce.integrations.sentence_transformers import FlatNCERankingLoss, FlatNCETrainer

WHO = {"a cat": "a kitten", "my boss": "the manager", "the boy": "a young man", "she": "that girl"}
DOES = {"sleeps": "is asleep", "runs": "is jogging", "eats": "has a meal", "sings": "makes music"}
WHERE = {"at home": "in the house", "outside": "in the open air"}


def paraphrases() -> Dataset:
    triples = list(product(WHO.items(), DOES.items(), WHERE.items()))
    sentences = [[" ".join(words) for words in zip(*triple, strict=True)] for triple in triples]
    anchors, positives = zip(*sentences, strict=True)
    return Dataset.from_dict({"anchor": anchors, "positive": positives})


def small_model(texts: list[str]) -> SentenceTransformer:
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=300, min_frequency=1, show_progress=False)
    tokenizer = BertTokenizer(vocab=pieces.get_vocab())
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": len(tokenizer)}
    config = BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        BertModel(config).save_pretrained(folder)
        return SentenceTransformer(modules=[Transformer(folder), Pooling(64)], device="cpu")


def main(folder: str, steps: int = 40) -> FlatNCETrainer:
    data = paraphrases()
    model = small_model([*data["anchor"], *data["positive"]])
    arguments = SentenceTransformerTrainingArguments(
        folder, max_steps=steps, logging_steps=steps // 4, per_device_train_batch_size=16,
        learning_rate=1e-3, report_to="tensorboard", save_strategy="no", use_cpu=True,
    )  # fmt: skip
    loss = FlatNCERankingLoss(model)  # was: losses.MultipleNegativesRankingLoss(model)
    trainer = FlatNCETrainer(model, arguments, data, loss=loss)  # was: SentenceTransformerTrainer
    trainer.train()
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(main(folder).diagnostics.verdicts()["objective"])
