"""Human evaluation: a study, its sheets, its report."""
