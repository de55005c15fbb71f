"""The paper's tables: which runs they take, what is done of them, and ours beside the printed numbers."""
