"""Language models as backbones: texts in, features out. They need the optional extra ``text``.

Importing this package does not import transformers: only loading a text backbone does.
"""

from fedstats_app.backbones.text.names import MINILM, TINY_TEXT, TextOptions, is_text_backbone, with_folder

__all__ = ["MINILM", "TINY_TEXT", "TextOptions", "is_text_backbone", "with_folder"]
