"""Networks for onnxruntime, torch and OpenVINO."""
