"""What a trained model is used for: predictions, scores, metrics."""
