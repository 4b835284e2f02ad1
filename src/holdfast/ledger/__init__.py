"""Where every GPU-second of a run went: the accounts, their ratios and reference figures."""
