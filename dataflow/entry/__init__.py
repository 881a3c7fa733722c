"""Entry points over an entry store: they give rows their times, record them for all sites, and mark them."""
