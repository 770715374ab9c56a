"""The engines, and `fit`, which runs them."""
