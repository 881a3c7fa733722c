"""What a region keeps in chains: state, steps, inputs, outputs, files, and how readers follow them."""
