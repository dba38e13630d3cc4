"""Classify images with the file of `fedstats export --onnx flowers.onnx`: python predict_images.py PICTURE ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("flowers.onnx")
classes = json.loads(session.get_modelmeta().custom_metadata_map["class-names"])
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    [[probabilities]] = session.run(["probabilities"], {"images": np.asarray(image)[None]})
    print(path, classes[probabilities.argmax()], f"{probabilities.max():.6f}")
