"""scikit-learn style classes."""
