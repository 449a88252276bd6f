"""What predictions are worth: measured collectives, logs of nccl-tests, and how far the models are from them."""
