"""What images say of patches: cached features, impact, Taylor importance, coverage, distances, trained selectors."""
