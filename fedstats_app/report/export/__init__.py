"""A run's classifier for other programs: one ONNX file, or a folder for the Hugging Face hub."""
