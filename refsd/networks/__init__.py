"""What describes a network: sizes, tensors, names in files, config.json, components, known bugs, cases."""
