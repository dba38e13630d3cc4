"""Language models as backbones: texts in, features out. They need the optional extra ``text``."""
