"""Models as data: layers over a short list of blocks, from a declarative file or a Hugging Face config.json."""
