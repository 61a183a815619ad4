"""Several runs trained side by side on one device."""
