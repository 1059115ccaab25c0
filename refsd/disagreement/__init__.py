"""Two engines and the reference: which is right, by how much, where they part, why."""
