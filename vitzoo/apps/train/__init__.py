"""Fine-tuning: groups of parameters, frozen layers, LoRA adapters."""
