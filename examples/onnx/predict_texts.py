"""Predict texts with an exported sentence encoder: pip install onnxruntime tokenizers."""

import json
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("reviews.onnx")
classes = json.loads(session.get_modelmeta().custom_metadata_map["class-names"])
tokenizer = Tokenizer.from_file("reviews.tokenizer.json")
for text in sys.argv[1:]:
    [tokens] = tokenizer.encode_batch([text])
    inputs = {"input_ids": np.array([tokens.ids]), "attention_mask": np.array([tokens.attention_mask])}
    [[probabilities]] = session.run(["probabilities"], inputs)
    print(text, classes[probabilities.argmax()], f"{probabilities.max():.6f}")
