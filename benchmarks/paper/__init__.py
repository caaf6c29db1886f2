"""The paper's tables, throughput and figures: what it prints beside what is measured here."""
