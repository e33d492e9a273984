"""Operators of PyTorch, made from the registry: schemas, gradients, conversions of tensors."""
