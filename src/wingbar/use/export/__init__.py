"""Embedders as files that need no wingbar: ONNX, a program of torch.export, a folder of timm, a repository of a hub."""
