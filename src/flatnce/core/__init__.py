"""What a loss needs: pairs, row statistics, objectives, diagnostics, temperature control."""
